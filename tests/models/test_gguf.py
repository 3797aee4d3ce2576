from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest

from kvd.errors import ModelError
from kvd.models.active import active_model, installed_smollm, use_file
from kvd.models.gguf import check_gguf

U8, U32, STRING, ARRAY, U64 = 0, 4, 8, 9, 10
F32 = 0


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def array(kind: int, *values: bytes) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, offset: int, *dimensions: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, F32, offset)


METADATA = [
    entry("general.name", STRING, text("tiny")),
    entry("tokens", ARRAY, array(STRING, text("a"), text(""), text("bc"))),
    entry("nested", ARRAY, array(ARRAY, array(U8, b"\x01", b"\x02"), array(STRING, text("x")))),
    entry("big", U64, b"\xff" * 8),
]
# The tensor that lies last need not be named last.
TENSORS = [tensor("last", 64, 4, 4), tensor("first", 0, 16)]


def gguf(
    metadata: list[bytes] = METADATA,
    tensors: list[bytes] = TENSORS,
    *,
    version: int = 3,
    alignment: int = 32,
    data: int = 128,
    counts: tuple[int, int] | None = None,
) -> bytes:
    tensor_count, entry_count = counts or (len(tensors), len(metadata))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, entry_count) + b"".join(metadata + tensors)
    return head + bytes(-len(head) % alignment) + bytes(data)


def check(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    check_gguf(path)


def refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ModelError, match=r"model\.gguf is cut off or damaged") as caught:
        check(tmp_path, content)
    assert caught.value.hint == "kvd setup --list"


@pytest.mark.parametrize("version", [2, 3])
def test_a_whole_file_is_accepted(tmp_path: Path, version: int) -> None:
    check(tmp_path, gguf(version=version))
    check(tmp_path, gguf(metadata=[], version=version))


def test_every_cut_that_takes_the_last_tensor_is_noticed(tmp_path: Path) -> None:
    whole = gguf()
    needed = len(whole) - 128 + 64 + 2
    for length in range(4, needed):
        refused(tmp_path, whole[:length])
    check(tmp_path, whole[:needed])


def test_the_alignment_decides_where_the_data_begins(tmp_path: Path) -> None:
    aligned = [*METADATA, entry("general.alignment", U32, struct.pack("<I", 4096))]
    check(tmp_path, gguf(aligned, alignment=4096))
    refused(tmp_path, gguf(aligned, alignment=32))
    for value in (0, 3):
        refused(tmp_path, gguf([entry("general.alignment", U32, struct.pack("<I", value))]))
    refused(tmp_path, gguf([entry("general.alignment", STRING, text("32"))]))


HUGE = 2**63 - 1
DEEP = array(U8)
for _ in range(5000):
    DEEP = array(ARRAY, DEEP)


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 1, HUGE),
        gguf(counts=(HUGE, len(METADATA))),
        gguf(counts=(len(TENSORS), HUGE)),
        gguf([entry("x", STRING, struct.pack("<Q", HUGE))]),
        gguf([entry("x", ARRAY, struct.pack("<IQ", STRING, HUGE))]),
        gguf([entry("x", ARRAY, struct.pack("<IQ", ARRAY, HUGE))]),
        gguf([entry("x", ARRAY, struct.pack("<IQ", U8, HUGE))]),
        gguf([entry("x", ARRAY, DEEP)]),
        gguf([entry("x", 13, b"\0" * 8)]),
        gguf([entry("x" * 70_000, U8, b"\0")]),
        gguf(tensors=[tensor("t", HUGE, 1)]),
        gguf(tensors=[tensor("t", 0, 1, 1, 1, 1, 1)]),
        gguf(tensors=[tensor("t", 0, HUGE, HUGE)]),
        gguf(tensors=[tensor("t", 128, 1)]),
    ],
)
def test_counts_and_lengths_have_to_fit_the_file(tmp_path: Path, content: bytes) -> None:
    started = time.monotonic()
    refused(tmp_path, content)
    assert time.monotonic() - started < 1.0


def test_a_damaged_file_does_not_become_the_active_one(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.gguf", tmp_path / "bad.gguf"
    good.write_bytes(gguf())
    bad.write_bytes(gguf()[:-100])
    chosen = use_file(good)
    with pytest.raises(ModelError, match=r"bad\.gguf is cut off or damaged"):
        use_file(bad)
    assert active_model() == chosen


def test_a_large_vocabulary_is_passed_over_quickly(tmp_path: Path) -> None:
    words = [text(f"word{number}") for number in range(150_000)]
    content = gguf([entry("tokens", ARRAY, array(STRING, *words)), entry("merges", ARRAY, array(STRING, *words))])
    started = time.monotonic()
    check(tmp_path, content)
    assert time.monotonic() - started < 2.0


def test_a_real_model_whole_and_cut(tmp_path: Path) -> None:
    real = installed_smollm()
    if real is None:
        pytest.skip("needs the extra smollm")
    check_gguf(real)
    size = real.stat().st_size
    copy = tmp_path / "model.gguf"
    with real.open("rb") as file:
        # Past its first megabytes the copy is a hole: only the length counts there.
        copy.write_bytes(file.read(4_000_000))
    os.truncate(copy, size)
    check_gguf(copy)
    for length in (size * 9 // 10, size // 2, size // 10, 4_000_000, 2_000_000, 1_000_000, 65_536, 1000, 24, 23, 5):
        os.truncate(copy, length)
        with pytest.raises(ModelError, match="is cut off or damaged"):
            check_gguf(copy)
