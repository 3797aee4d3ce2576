"""The cold form of a KV block: quantized, packed, zstd-compressed, checked.

Keys come rotated back to position 0. Keys and values are quantized per channel over the block's tokens: the keys
of real models carry large offsets per channel, which a zero point per channel absorbs and a scale shared along the
head does not; values lose no more that way than with a scale for each token, and their scales take less room. A
block is quantized once, when its KV is computed; what is in the pool is what decodes from its frame.

A frame is `_HEADER` and a zstd frame with zstd's own content checksum; inside, in order:

    tokens      i32 [tokens]                    compared again on a hit
    k_zero      f16 [n_layer, width]            not in symmetric codecs; k_scale likewise
    k           u8  [n_layer, tokens, width/2]  low nibble: first half of a row, high nibble: second half;
                                                [n_layer, tokens, width] where codes have 8 bits
    v_zero, v_scale, v                          likewise

and in an unquantized frame: tokens, k and v as f16 [n_layer, tokens, width].
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import zstandard

from kvd.kv.quantize import Grid, pack, quantize, unpack_into
from kvd.types import KVShape

VERSION = 2
BLOCK_TOKENS = 128
"""Most tokens in a block: scales are shared by so many."""

_MAGIC = b"KVD\x01"
_ZSTD_LEVEL = 3
_HEADER = struct.Struct("<4sBBHHII")
"""magic, version, codec number, layers, tokens, width, crc32 of the fields before it and of the zstd frame"""


class BlockError(Exception):
    """A frame is damaged, or of another kind than asked for."""


@dataclass(frozen=True, slots=True)
class Codec:
    """One way to store numbers; `number` names it in frames. Without a grid they stay float16."""

    name: str
    number: int
    grid: Grid | None

    @property
    def id(self) -> str:
        """What a block's fingerprint says of its codec."""
        return f"{self.name}-v{VERSION}"

    def parts(self, shape: KVShape, tokens: int) -> list[tuple[torch.dtype, tuple[int, ...]]]:
        """Kind and shape of what a frame holds behind the token ids, for keys and again for values."""
        if self.grid is None:
            return [(torch.float16, (shape.n_layer, tokens, shape.width))]
        sides = 1 if self.grid.symmetric else 2
        packed = shape.width * self.grid.bits // 8
        return [
            *[(torch.float16, (shape.n_layer, 1, shape.width))] * sides,
            (torch.uint8, (shape.n_layer, tokens, packed)),
        ]


F16 = Codec("f16", 16, None)
INT8 = Codec("int8", 8, Grid(8))
INT4 = Codec("int4", 4, Grid(4))
INT4_SYMMETRIC = Codec("int4-symmetric", 5, Grid(4, symmetric=True))
CODECS = {codec.name: codec for codec in (INT4, INT8, INT4_SYMMETRIC, F16)}
_BY_NUMBER = {codec.number: codec for codec in CODECS.values()}


@dataclass(frozen=True, slots=True)
class Block:
    """A decoded block: token ids, and `kv` as `[n_layer, 2, tokens, width]` float16 (keys at position 0)."""

    tokens: tuple[int, ...]
    kv: torch.Tensor


def _raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().cpu().numpy().tobytes()


def _encoded(x: torch.Tensor, codec: Codec) -> list[bytes]:
    if codec.grid is None:
        return [_raw(x)]
    codes, zero, scale = quantize(x.float(), 1, codec.grid)
    sides = [scale] if codec.grid.symmetric else [zero, scale]
    return [*map(_raw, sides), _raw(pack(codes, codec.grid))]


def encode(tokens: Sequence[int], kv: torch.Tensor, codec: Codec = INT4) -> bytes:
    """The frame of a block; `kv` as in `Block`, at most `BLOCK_TOKENS` tokens, on any device."""
    n_layer, _, count, width = kv.shape
    payload = b"".join((np.asarray(tokens, "<i4").tobytes(), *_encoded(kv[:, 0], codec), *_encoded(kv[:, 1], codec)))
    body = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(payload)
    fields = (_MAGIC, VERSION, codec.number, n_layer, count, width)
    crc = zlib.crc32(body, zlib.crc32(_HEADER.pack(*fields, 0)))
    return _HEADER.pack(*fields, crc) + body


@dataclass(frozen=True, slots=True)
class Payload:
    """What a frame holds, checked and decompressed but still quantized."""

    codec: Codec
    shape: KVShape
    tokens: tuple[int, ...]
    data: bytearray

    def dequantized(self, device: torch.device | None = None) -> torch.Tensor:
        """`kv` as in `Block`, computed on `device`."""
        data = torch.frombuffer(self.data, dtype=torch.uint8)
        if device is not None:
            data = data.to(device)
        offset = 4 * len(self.tokens)
        kv = torch.empty(
            (self.shape.n_layer, 2, len(self.tokens), self.shape.width), dtype=torch.float16, device=data.device
        )
        for which in range(2):
            parts = []
            for dtype, sizes in self.codec.parts(self.shape, len(self.tokens)):
                end = offset + math.prod(sizes) * dtype.itemsize
                parts.append(data[offset:end].view(dtype).view(sizes))
                offset = end
            _dequantize(parts, self.codec, kv[:, which])
        return kv


def _dequantize(parts: Sequence[torch.Tensor], codec: Codec, out: torch.Tensor) -> None:
    if codec.grid is None:
        out.copy_(parts[0])
        return
    *sides, packed = parts
    scale = sides[-1].float()
    zero = -codec.grid.middle * scale if codec.grid.symmetric else sides[0].float()
    unpack_into(out, packed, zero, scale, codec.grid)


def open_frame(frame: bytes, shape: KVShape) -> Payload:
    """Check and decompress; raises `BlockError` for a frame that is damaged or of another model's shape."""
    if len(frame) < _HEADER.size:
        raise BlockError("frame is cut off")
    *fields, crc = _HEADER.unpack_from(frame)
    magic, version, number, n_layer, count, width = fields
    codec = _BY_NUMBER.get(number)
    if (magic, version) != (_MAGIC, VERSION) or codec is None:
        raise BlockError("frame of another codec")
    body = memoryview(frame)[_HEADER.size :]
    if crc != zlib.crc32(body, zlib.crc32(_HEADER.pack(*fields, 0))):
        raise BlockError("checksum differs")
    if (n_layer, width) != (shape.n_layer, shape.width):
        raise BlockError("frame of another model's shape")
    if not 0 < count <= BLOCK_TOKENS:
        raise BlockError(f"frame of {count} tokens")
    parts = codec.parts(shape, count)
    size = 4 * count + 2 * sum(math.prod(sizes) * dtype.itemsize for dtype, sizes in parts)
    try:
        data = bytearray(zstandard.ZstdDecompressor().decompress(body, max_output_size=size))
    except zstandard.ZstdError as error:
        raise BlockError(str(error)) from error
    if len(data) != size:
        raise BlockError("payload of another size")
    tokens = tuple(np.frombuffer(data, "<i4", count).tolist())
    return Payload(codec, shape, tokens, data)


def decode(frame: bytes, shape: KVShape, device: torch.device | None = None) -> Block:
    """The inverse of `encode`, whatever the codec; raises `BlockError` as `open_frame` does."""
    payload = open_frame(frame, shape)
    return Block(payload.tokens, payload.dequantized(device))
