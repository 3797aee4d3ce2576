"""Whether a file is a whole GGUF model, told by its structure; the weights themselves are not read.

header     "GGUF", u32 version, u64 tensors, u64 metadata entries
metadata   per entry: string key, u32 type, value; a string is u64 length and bytes
tensors    per tensor: string name, u32 dimensions, u64 each, u32 type, u64 offset into the data
data       begins at the next multiple of `general.alignment`
"""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import BinaryIO

from kvd.errors import ModelError, UsageError

_VERSIONS = (2, 3)
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_HEADER = struct.Struct("<4sIQQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_U32_U64 = struct.Struct("<IQ")

_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value, by its type."""
_TYPE_U32 = 4
_TYPE_STRING = 8
_TYPE_ARRAY = 9

_LEAST_METADATA = 13
"""Bytes of the shortest metadata entry, and below of the shortest tensor entry."""
_LEAST_TENSOR = 24
_MOST_KEY = 65_535
_MOST_DEPTH = 8
_MOST_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
_BUFFER_BYTES = 1 << 20


def check_gguf(path: Path) -> None:
    """Raises `UsageError` where there is no such file, `ModelError` where it is no usable GGUF model."""
    other = "kvd setup --list"
    if not os.path.exists(path):
        raise UsageError(f"no such file: {path}", hint=other)
    if not path.is_file():
        raise UsageError(f"not a file: {path}", hint=other)
    try:
        with path.open("rb", buffering=_BUFFER_BYTES) as file:
            fault = _fault(file)
    except OSError as error:
        raise ModelError(f"can't read {path}: {error.strerror}", hint=f"chmod u+r '{path}'") from error
    if fault:
        raise ModelError(f"{path} {fault}", hint=other)
    if _SPLIT.search(path.name):
        # The fingerprint of stored KV covers one file; other shards could change unnoticed.
        raise ModelError(f"{path} is one part of a split model", hint="llama-gguf-split --merge FIRST.gguf WHOLE.gguf")


def embedding_width(path: Path) -> int:
    """Numbers of a token's vector in the model, as its metadata say. Raises `ModelError` where they don't."""
    try:
        with path.open("rb", buffering=_BUFFER_BYTES) as file:
            reader = _Reader(file)
            entries = reader.unpack(_HEADER)[3]
            reader.expect(entries * _LEAST_METADATA)
            for _ in range(entries):
                key = reader.take(min(reader.u64(), _MOST_KEY))
                kind = reader.u32()
                if kind == _TYPE_U32 and key.endswith(b".embedding_length"):
                    return reader.u32()
                _skip_values(reader, kind, 1)
    except (OSError, _DamagedError) as error:
        raise ModelError(f"can't read {path}: {getattr(error, 'strerror', 'damaged')}") from error
    raise ModelError(f"{path} does not say how wide its vectors are")


class _DamagedError(Exception):
    """The structure does not fit the file."""


def _fault(file: BinaryIO) -> str:
    """What is wrong with the file, as the end of a sentence; empty when nothing is."""
    reader = _Reader(file)
    if file.peek(4)[:4] != b"GGUF":  # type: ignore[attr-defined]  # the file is buffered
        return "is not a GGUF file"
    try:
        _, version, tensors, entries = reader.unpack(_HEADER)
        if version not in _VERSIONS:
            return f"has GGUF version {version}, known are 2 and 3"
        if not tensors:
            return "holds a vocabulary but no weights"
        reader.expect(entries * _LEAST_METADATA + tensors * _LEAST_TENSOR)
        alignment = _read_metadata(reader, entries)
        last_end = max(_read_tensor(reader) for _ in range(tensors))
        reader.skip(-reader.position % alignment)
        reader.expect(last_end)
    except _DamagedError:
        return "is cut off or damaged"
    return ""


class _Reader:
    """Reads forwards; nothing is asked of the file that its size does not allow."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self.position = 0

    def expect(self, count: int) -> None:
        """Raises `_DamagedError` unless `count` more bytes are there."""
        if count > self._size - self.position:
            raise _DamagedError

    def take(self, count: int) -> bytes:
        self.expect(count)
        data = self._file.read(count)
        if len(data) < count:
            # Somebody has shortened the file since.
            raise _DamagedError
        self.position += count
        return data

    def skip(self, count: int) -> None:
        if count < _BUFFER_BYTES:
            self.take(count)
            return
        self.expect(count)
        self.position += count
        self._file.seek(self.position)

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self.take(layout.size))

    def u32(self) -> int:
        return self.unpack(_U32)[0]

    def u64(self) -> int:
        return self.unpack(_U64)[0]


def _read_metadata(reader: _Reader, entries: int) -> int:
    """The alignment of the data."""
    alignment = _DEFAULT_ALIGNMENT
    for _ in range(entries):
        length = reader.u64()
        if length > _MOST_KEY:
            raise _DamagedError
        key = reader.take(length)
        kind = reader.u32()
        if key != b"general.alignment":
            _skip_values(reader, kind, 1)
            continue
        alignment = reader.u32() if kind == _TYPE_U32 else 0
        if alignment == 0 or alignment & (alignment - 1):
            raise _DamagedError
    return alignment


def _skip_values(reader: _Reader, kind: int, count: int, depth: int = 0) -> None:
    """Pass over `count` values of one type."""
    if kind in _SCALARS:
        reader.skip(count * _SCALARS[kind])
    elif kind == _TYPE_STRING:
        reader.expect(count * _U64.size)
        for _ in range(count):
            reader.skip(reader.u64())
    elif kind == _TYPE_ARRAY and depth < _MOST_DEPTH:
        reader.expect(count * _U32_U64.size)
        for _ in range(count):
            inner, length = reader.unpack(_U32_U64)
            _skip_values(reader, inner, length, depth + 1)
    else:
        raise _DamagedError


def _read_tensor(reader: _Reader) -> int:
    """Where in the data the tensor ends at the earliest: no type takes less than a bit per weight."""
    reader.skip(reader.u64())
    dimensions = reader.u32()
    if dimensions > _MOST_DIMENSIONS:
        raise _DamagedError
    weights = 1
    for _ in range(dimensions):
        weights *= reader.u64()
    _, offset = reader.unpack(_U32_U64)
    return offset + max(1, weights // 8)
