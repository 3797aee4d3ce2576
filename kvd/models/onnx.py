"""What an ONNX file says of itself: its inputs, its outputs, and the files beside it that hold weights.

A file is a protobuf message (onnx.proto). Only what is asked for is read; the weights are passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from kvd.errors import ModelError

_WITHIN = {
    ("model", 7): "graph",
    ("model", 25): "function",
    ("function", 7): "node",
    ("graph", 1): "node",
    ("graph", 5): "tensor",
    ("graph", 15): "sparse",
    ("sparse", 1): "tensor",
    ("sparse", 2): "tensor",
    ("node", 5): "attribute",
    ("attribute", 5): "tensor",
    ("attribute", 6): "graph",
    ("attribute", 10): "tensor",
    ("attribute", 11): "graph",
    ("tensor", 13): "entry",
}
"""Which message a field of a message holds, where tensors may be within. Names are short for `ModelProto` and so on."""

_INPUT, _OUTPUT = 11, 12
"""Fields of the graph; each is `{1: name, 2: type {1: tensor {2: shape {1: dimension {1: size}}}}}`."""
_TENSOR_NAME = 8
_KEY, _VALUE = 1, 2
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
"""How a field is written."""
_MOST_DEPTH = 32
_MOST_TEXT = 4096
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class OnnxHead:
    """`outputs`: each one's sizes, 0 for one that is not fixed; empty where nothing is said.

    `beside`: the other files that its weights are in.
    """

    inputs: tuple[str, ...]
    outputs: dict[str, tuple[int, ...]]
    beside: tuple[Path, ...]


def read_onnx(path: Path) -> OnnxHead:
    """Raises `ModelError` for what can't be read or is no ONNX model, and where files that it needs are missing."""
    found = _Found()
    try:
        with path.open("rb", buffering=_BUFFER_BYTES) as file:
            reader = _Reader(file)
            _walk(reader, "model", reader.size, found, 0)
    except OSError as error:
        raise ModelError(f"can't read {path}: {error.strerror}") from error
    except _DamagedError:
        raise ModelError(f"{path} is no ONNX model, or is cut off") from None
    if not found.outputs:
        raise ModelError(f"{path} is no ONNX model: it has no outputs")
    beside = tuple(_beside(path, name) for name in sorted(found.locations))
    # Old files list their weights among the inputs.
    inputs = tuple(name for name in found.inputs if name not in found.weights)
    return OnnxHead(inputs, found.outputs, beside)


def _beside(path: Path, name: str) -> Path:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        raise ModelError(f"{path} wants weights from outside its folder: {name}")
    file = path.parent / name
    if not file.is_file():
        raise ModelError(f"{path} needs {name} beside it, which is missing")
    return file


class _DamagedError(Exception):
    """It is no such message."""


@dataclass(slots=True)
class _Found:
    inputs: list[str] = field(default_factory=list)
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)
    locations: set[str] = field(default_factory=set)


class _Reader:
    """Reads forwards, and nothing that the file's size does not allow."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    def fields(self, end: int) -> Iterator[tuple[int, int, int]]:
        """Number, way of writing and value of each field up to `end`; of bytes, the value is where they end.

        The file stands at a field's bytes when it is given, and may be left anywhere.
        """
        position = self._file.tell()
        while position < end:
            tag = self._varint()
            number, way = tag >> 3, tag & 7
            if way == _VARINT:
                value = self._varint()
                position = self._file.tell()
            elif way in (_EIGHT, _FOUR):
                value, position = 0, self._file.tell() + (8 if way == _EIGHT else 4)
            elif way == _BYTES:
                length = self._varint()
                value = position = self._file.tell() + length
            else:
                raise _DamagedError
            if position > end:
                raise _DamagedError
            yield number, way, value
            self._file.seek(position)

    def text(self, end: int) -> str:
        """The bytes up to `end`, as text."""
        length = end - self._file.tell()
        data = self._file.read(min(length, _MOST_TEXT))
        if len(data) < length:
            raise _DamagedError
        return data.decode("utf-8", "replace")

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self._file.read(1)
            if not byte:
                raise _DamagedError
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return value
        raise _DamagedError


def _walk(reader: _Reader, message: str, end: int, found: _Found, depth: int) -> None:
    """Go through a message and those within it for what `found` holds."""
    if depth > _MOST_DEPTH:
        raise _DamagedError
    # The graph of the model; those within nodes have inputs and outputs of their own.
    outermost = message == "graph" and depth == 1
    key = ""
    for number, way, value in reader.fields(end):
        if way != _BYTES:
            continue
        within = _WITHIN.get((message, number))
        if within is not None:
            _walk(reader, within, value, found, depth + 1)
        elif message == "entry" and number == _KEY:
            key = reader.text(value)
        elif message == "entry" and number == _VALUE and key == "location":
            found.locations.add(reader.text(value))
        elif message == "tensor" and number == _TENSOR_NAME:
            found.weights.add(reader.text(value))
        elif outermost and number in (_INPUT, _OUTPUT):
            name, sizes = _described(reader, value)
            if number == _INPUT:
                found.inputs.append(name)
            else:
                found.outputs[name] = sizes


def _described(reader: _Reader, end: int) -> tuple[str, tuple[int, ...]]:
    """Name and sizes of an input or output."""
    name = ""
    sizes: tuple[int, ...] = ()
    for number, way, value in reader.fields(end):
        if number == 1 and way == _BYTES:
            name = reader.text(value)
        elif number == 2 and way == _BYTES:
            sizes = tuple(_sizes(reader, value))
    return name, sizes


def _sizes(reader: _Reader, end: int, path: tuple[int, ...] = (1, 2)) -> Iterator[int]:
    """The sizes in a type; `path` is what leads to the shape."""
    for number, way, value in reader.fields(end):
        if way != _BYTES:
            continue
        if path and number == path[0]:
            yield from _sizes(reader, value, path[1:])
        elif not path and number == 1:
            yield next((size for key, kind, size in reader.fields(value) if (key, kind) == (1, _VARINT)), 0)
