from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from kvd.errors import StoreError
from kvd.kv.store import DAMAGE, BlockStore, StoredBlock

WHOSE = b"f" * 32


def block(name: bytes, size: int = 100, whose: bytes = WHOSE) -> StoredBlock:
    return StoredBlock(name.ljust(32, b"-"), bytes(32), whose, 3, (name * size)[:size])


def keys(*names: bytes) -> list[bytes]:
    return [name.ljust(32, b"-") for name in names]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.db"


def test_a_reader_sees_what_the_writer_put(path: Path) -> None:
    reader = BlockStore(path, readonly=True)
    assert reader.get(keys(b"a"), WHOSE) == {}
    writer = BlockStore(path)
    writer.put([block(b"a"), block(b"b")])
    assert reader.get(keys(b"a", b"b", b"c"), WHOSE) == {
        key: (name * 100)[:100] for key, name in zip(keys(b"a", b"b"), (b"a", b"b"), strict=True)
    }
    assert writer.stats()["blocks"] == 2
    assert writer.stats()["tokens"] == 6


def test_a_reader_follows_a_file_that_is_replaced(path: Path) -> None:
    writer = BlockStore(path)
    writer.put([block(b"a")])
    reader = BlockStore(path, readonly=True)
    assert list(reader.get(keys(b"a"), WHOSE)) == keys(b"a")
    writer.close()
    for file in path.parent.glob("kv.db*"):
        file.unlink()
    assert reader.get(keys(b"a"), WHOSE) == {}
    BlockStore(path).put([block(b"b")])
    assert list(reader.get(keys(b"a", b"b"), WHOSE)) == keys(b"b")


def test_another_models_blocks_are_not_found(path: Path) -> None:
    writer = BlockStore(path)
    writer.put([block(b"a")])
    assert writer.get(keys(b"a"), b"g" * 32) == {}


def test_many_keys_in_one_call(path: Path) -> None:
    writer = BlockStore(path)
    names = [f"{index}".encode() for index in range(1500)]
    writer.put([block(name) for name in names])
    assert len(writer.get(keys(*names), WHOSE)) == 1500


def test_dropped_blocks_are_gone(path: Path) -> None:
    writer = BlockStore(path)
    writer.put([block(b"a"), block(b"b")])
    writer.drop(keys(b"a"))
    assert list(writer.get(keys(b"a", b"b"), WHOSE)) == keys(b"b")


def test_the_cap_holds_for_the_file_and_the_oldest_leave(path: Path) -> None:
    writer = BlockStore(path)
    for index in range(60):
        writer.put([block(f"{index}".encode(), 50_000)])
    writer.touch(keys(b"0"))
    assert writer.file_bytes() > 3_000_000
    freed = writer.gc(1_000_000)
    assert writer.file_bytes() <= 1_000_000
    assert freed > 2_000_000
    left = writer.get(keys(*(f"{index}".encode() for index in range(60))), WHOSE)
    assert 10 <= len(left) <= 20
    assert {keys(b"0")[0], keys(b"59")[0]} <= set(left)
    assert keys(b"1")[0] not in left


def test_the_file_is_its_owners_alone(path: Path) -> None:
    BlockStore(path).put([block(b"a")])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_newer_format_is_refused_and_kept(path: Path) -> None:
    BlockStore(path).close()
    db = apsw.Connection(str(path))
    db.pragma("user_version", 99)
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer kvd"):
        BlockStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_damaged_file_is_made_anew_and_said(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    writer = BlockStore(path)
    assert "damaged" in writer.rebuilt
    writer.put([block(b"a")])
    assert list(writer.get(keys(b"a"), WHOSE)) == keys(b"a")


def test_a_truncated_file_loses_blocks_not_the_store(path: Path) -> None:
    writer = BlockStore(path)
    writer.put([block(f"{index}".encode(), 20_000) for index in range(50)])
    writer.gc(10**9)
    writer.close()
    os.truncate(path, path.stat().st_size // 2)
    writer = BlockStore(path)
    writer.put([block(b"new")])
    assert list(writer.get(keys(b"new"), WHOSE)) == keys(b"new")


_WRITE_FOR_EVER = """
import sys
from pathlib import Path
from kvd.kv.store import DAMAGE, BlockStore, StoredBlock
store = BlockStore(Path(sys.argv[1]))
for index in range(10**6):
    name = str(index).encode()
    store.put([StoredBlock(name.rjust(32, b"0"), bytes(32), b"f" * 32, 1, name * 2000)])
    if index % 10 == 9:
        store.gc(3_000_000)
    print(index, flush=True)
"""


def test_killed_while_writing_loses_nothing_committed(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", _WRITE_FOR_EVER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = -1
    for line in process.stdout:
        last = int(line)
        if last >= 25:
            process.send_signal(signal.SIGKILL)
            break
    process.wait(10)
    process.stdout.close()
    writer = BlockStore(path)
    assert writer.rebuilt == ""
    found = writer.get([str(index).encode().rjust(32, b"0") for index in range(last + 1)], b"f" * 32)
    assert len(found) == last + 1
    assert all(data == key.lstrip(b"0") * 2000 for key, data in found.items() if key.strip(b"0"))


def damage_page(path: Path, name: str) -> None:
    """Overwrite the first page of a table or index."""
    db = apsw.Connection(str(path))
    page = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).get
    size = db.pragma("page_size")
    db.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xee" * size)


def spoil(path: Path, how: str) -> None:
    if how in ("blocks", "blocks_by_use"):
        damage_page(path, how)
        return
    db = apsw.Connection(str(path))
    db.execute(how)
    db.close()


@pytest.mark.parametrize(
    "how",
    [
        "blocks",
        "blocks_by_use",
        "DROP TABLE blocks",
        "ALTER TABLE blocks DROP COLUMN parent",
        "PRAGMA user_version = 0",
    ],
)
def test_damage_of_every_part_ends_with_a_store_that_works(path: Path, how: str) -> None:
    writer = BlockStore(path)
    writer.put([block(f"{index}".encode(), 3_000) for index in range(50)])
    writer.gc(10**9)
    writer.close()
    spoil(path, how)
    writer = BlockStore(path)
    try:
        writer.put([block(b"new")])
    except DAMAGE as error:
        writer.start_anew(error)
        writer.put([block(b"new")])
    assert list(writer.get(keys(b"new"), WHOSE)) == keys(b"new")
    writer.gc(1_000_000)


def test_a_removed_file_is_noticed(path: Path) -> None:
    writer = BlockStore(path)
    assert writer.is_current
    path.unlink()
    assert not writer.is_current
