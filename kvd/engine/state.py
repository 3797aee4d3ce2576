"""llama.cpp's sequence state: the bytes that `llama_state_seq_get_data` gives and `set_data` takes.

Layout of llama-cpp-python 0.3.36, little-endian, no padding (`llama_kv_cache::state_write` in llama.cpp):

    u32 magic, i32 sequence, u32 streams (1), u32 cells
    cells x { i32 position, u32 sequences (1), i32 sequence }
    u32 v_trans (0 with flash attention), u32 layers
    layers x { i32 ggml type, u64 bytes of a row, cells x row }     keys
    layers x { i32 ggml type, u64 bytes of a row, cells x row }     values

The format has changed before. `parse_state` therefore accounts for every byte and raises `StateFormatError` on
the slightest surprise; kvd then answers without reuse.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvd.types import KVShape

Half = npt.NDArray[np.float16]

MAGIC = 0xAF143CD8
_GGML_TYPE_F16 = 1
_HEAD = struct.Struct("<IiII")
_CELL = np.dtype([("position", "<i4"), ("sequences", "<u4"), ("sequence", "<i4")])
_MIDDLE = struct.Struct("<II")
_ROWS = struct.Struct("<iQ")


class StateFormatError(Exception):
    """The bytes are not the layout that this module knows."""


@dataclass(frozen=True, slots=True)
class SequenceState:
    """The cells of one sequence, ordered by position.

    `positions` is `[cells]`; `keys` and `values` are `[n_layer, cells, width]` float16.
    """

    positions: npt.NDArray[np.int32]
    keys: Half
    values: Half


def parse_state(blob: npt.NDArray[np.uint8]) -> SequenceState:
    """Take a sequence's state apart; raises `StateFormatError` unless every byte is accounted for."""
    data = blob.data
    if len(data) < _HEAD.size:
        raise StateFormatError(f"{len(data)} bytes are too few")
    magic, _, streams, cells = _HEAD.unpack_from(data)
    if (magic, streams) != (MAGIC, 1):
        raise StateFormatError(f"unknown head (magic {magic:#x}, {streams} streams)")
    offset = _HEAD.size
    if offset + cells * _CELL.itemsize + _MIDDLE.size > len(data):
        raise StateFormatError("the cells' table is cut off")
    table = np.frombuffer(data, _CELL, cells, offset)
    if not (table["sequences"] == 1).all():
        raise StateFormatError("a cell belongs to several sequences, or cells have extra fields")
    offset += cells * _CELL.itemsize
    v_trans, n_layer = _MIDDLE.unpack_from(data, offset)
    offset += _MIDDLE.size
    if v_trans != 0 or not 0 < n_layer < 1024:
        raise StateFormatError(f"unknown middle (v_trans {v_trans}, {n_layer} layers)")
    keys, offset = _parse_rows(data, offset, n_layer, cells)
    values, offset = _parse_rows(data, offset, n_layer, cells)
    if offset != len(data):
        raise StateFormatError(f"{len(data) - offset} bytes are left over")
    if keys.shape != values.shape:
        raise StateFormatError("keys and values differ in width")
    # Rows come in the order of cells, which is any order once cells were freed and taken again.
    order = np.argsort(table["position"], kind="stable")
    return SequenceState(table["position"][order], keys[:, order], values[:, order])


def _parse_rows(data: memoryview, offset: int, n_layer: int, cells: int) -> tuple[Half, int]:
    """The rows of all layers as `[n_layer, cells, width]`, and the offset behind them."""
    width = 0
    layers = []
    for _ in range(n_layer):
        if offset + _ROWS.size > len(data):
            raise StateFormatError("a layer's head is cut off")
        ggml_type, row_bytes = _ROWS.unpack_from(data, offset)
        offset += _ROWS.size
        if ggml_type != _GGML_TYPE_F16 or row_bytes % 2 or (width and row_bytes != 2 * width):
            raise StateFormatError(f"rows of type {ggml_type} with {row_bytes} bytes")
        width = row_bytes // 2
        if offset + cells * row_bytes > len(data):
            raise StateFormatError("a layer's rows are cut off")
        layers.append(np.frombuffer(data, np.float16, cells * width, offset).reshape(cells, width))
        offset += cells * row_bytes
    return np.stack(layers), offset


def state_bytes(shape: KVShape, cells: int) -> int:
    """Bytes of the state of so many cells."""
    return _rows_start(cells) + 2 * shape.n_layer * _layer_bytes(shape, cells)


def _rows_start(cells: int) -> int:
    return _HEAD.size + cells * _CELL.itemsize + _MIDDLE.size


def _layer_bytes(shape: KVShape, cells: int) -> int:
    return _ROWS.size + cells * shape.width * 2


class StateBuffer:
    """A state under construction: headers are written, rows are views to be filled in place.

    `keys(layer)` and `values(layer)` are writable `[cells, width]` float16 views of `blob`. Given `memory`, the
    state is built in its first bytes if they suffice: for large states the system takes longer to hand out fresh
    pages than it takes to fill them.
    """

    def __init__(
        self,
        shape: KVShape,
        positions: Sequence[int],
        sequence: int,
        memory: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        cells = len(positions)
        self._cells, self._shape = cells, shape
        self._rows_start = _rows_start(cells)
        self._layer_bytes = _layer_bytes(shape, cells)
        size = state_bytes(shape, cells)
        if memory is None or memory.size < size:
            memory = np.empty(size, np.uint8)
        self.blob: npt.NDArray[np.uint8] = memory[:size]
        _HEAD.pack_into(self.blob.data, 0, MAGIC, sequence, 1, cells)
        table = self.blob[_HEAD.size : self._rows_start - _MIDDLE.size].view(_CELL)
        table["position"], table["sequences"], table["sequence"] = positions, 1, sequence
        _MIDDLE.pack_into(self.blob.data, self._rows_start - _MIDDLE.size, 0, shape.n_layer)
        for index in range(2 * shape.n_layer):
            start = self._rows_start + index * self._layer_bytes
            _ROWS.pack_into(self.blob.data, start, _GGML_TYPE_F16, shape.width * 2)

    def _rows(self, index: int) -> Half:
        start = self._rows_start + index * self._layer_bytes + _ROWS.size
        rows = self.blob[start : start + self._cells * self._shape.width * 2].view(np.float16)
        return rows.reshape(self._cells, self._shape.width)

    def keys(self, layer: int) -> Half:
        return self._rows(layer)

    def values(self, layer: int) -> Half:
        return self._rows(self._shape.n_layer + layer)

    def layers(self) -> Iterator[tuple[Half, Half]]:
        """Keys and values of one layer after the other."""
        return ((self.keys(layer), self.values(layer)) for layer in range(self._shape.n_layer))
