"""The cold form of a KV block: quantized, packed, zstd-compressed, checked.

Keys come rotated back to position 0. Keys and values are quantized per channel over the block's tokens: the keys
of real models carry large offsets per channel, which a zero point per channel absorbs and a scale shared along the
head does not; values lose no more that way than with a scale for each token, and their scales take less room. Of
four bits a number, keys get five and values three: what an answer loses to 4-bit codes, it loses by the keys
(docs/benchmarks.md). A block is quantized once, when its KV is computed; what is in the pool is what decodes from
its frame.

A frame is `_HEADER` and a zstd frame with zstd's own content checksum; inside, in order:

    tokens      i32 [tokens]                    compared again on a hit
    k_zero      f16 [n_layer, width]            not in symmetric codecs; k_scale likewise
    k           u8  [n_layer, tokens, width]    or, for codes of at most 4 bits, [n_layer, tokens, width/2]:
                                                first half of a row in the low nibbles, second half in the high ones
    v_zero, v_scale, v                          likewise

and in an unquantized frame: tokens, k and v as f16 [n_layer, tokens, width].
"""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
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
    """One way to store keys and values; `number` names it in frames. Without a grid they stay float16."""

    name: str
    number: int
    keys: Grid | None
    values: Grid | None

    @property
    def id(self) -> str:
        """What a block's fingerprint says of its codec."""
        return f"{self.name}-v{VERSION}"

    @property
    def grids(self) -> tuple[Grid | None, Grid | None]:
        """In the order in which a frame holds both sides."""
        return self.keys, self.values


F16 = Codec("f16", 16, None, None)
INT8 = Codec("int8", 8, Grid(8), Grid(8))
INT4 = Codec("int4", 4, Grid(4), Grid(4))
INT4_SYMMETRIC = Codec("int4-symmetric", 5, Grid(4, symmetric=True), Grid(4, symmetric=True))
K5V3 = Codec("k5v3", 6, Grid(5), Grid(3))
DEFAULT = K5V3
CODECS = {codec.name: codec for codec in (K5V3, INT4, INT8, INT4_SYMMETRIC, F16)}
_BY_NUMBER = {codec.number: codec for codec in CODECS.values()}


def _parts(grid: Grid | None, shape: KVShape, tokens: int) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    """Kind and shape of what a frame holds of one side."""
    if grid is None:
        return [(torch.float16, (shape.n_layer, tokens, shape.width))]
    sides = 1 if grid.symmetric else 2
    return [
        *[(torch.float16, (shape.n_layer, 1, shape.width))] * sides,
        (torch.uint8, (shape.n_layer, tokens, shape.width // grid.per_byte)),
    ]


def _bytes(parts: Sequence[tuple[torch.dtype, tuple[int, ...]]]) -> int:
    return sum(math.prod(sizes) * dtype.itemsize for dtype, sizes in parts)


@dataclass(frozen=True, slots=True)
class Block:
    """A decoded block: token ids, and `kv` as `[n_layer, 2, tokens, width]` float16 (keys at position 0)."""

    tokens: tuple[int, ...]
    kv: torch.Tensor


def _raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().cpu().numpy().tobytes()


def _encoded(x: torch.Tensor, grid: Grid | None) -> list[bytes]:
    if grid is None:
        return [_raw(x)]
    codes, zero, scale = quantize(x.float(), 1, grid)
    sides = [scale] if grid.symmetric else [zero, scale]
    return [*map(_raw, sides), _raw(pack(codes, grid))]


def encode(tokens: Sequence[int], kv: torch.Tensor, codec: Codec = DEFAULT) -> bytes:
    """The frame of a block; `kv` as in `Block`, at most `BLOCK_TOKENS` tokens, on any device.

    Raises `BlockError` where a number is infinite or none: it would spoil its channel for the whole block.
    """
    n_layer, _, count, width = kv.shape
    if not 0 < count <= BLOCK_TOKENS:
        raise BlockError(f"{count} tokens for a block")
    if not torch.isfinite(kv).all():
        raise BlockError("the KV is not finite")
    sides = (_encoded(kv[:, which], grid) for which, grid in enumerate(codec.grids))
    parts = [np.asarray(tokens, "<i4").tobytes(), *itertools.chain.from_iterable(sides)]
    body = compressed(parts, zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True))
    fields = (_MAGIC, VERSION, codec.number, n_layer, count, width)
    crc = zlib.crc32(body, zlib.crc32(_HEADER.pack(*fields, 0)))
    return _HEADER.pack(*fields, crc) + body


def compressed(parts: Sequence[bytes], compressor: zstandard.ZstdCompressor) -> bytes:
    """One zstd frame of all `parts`, each with entropy tables of its own: 2 % less than one run of bytes."""
    stream = compressor.compressobj(size=sum(map(len, parts)))
    flushed = (stream.compress(part) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for part in parts)
    return b"".join(flushed) + stream.flush()


@dataclass(frozen=True, slots=True)
class Payload:
    """What a frame holds, checked and decompressed but still quantized."""

    codec: Codec
    shape: KVShape
    tokens: tuple[int, ...]
    data: bytearray

    def parts(self) -> Iterator[torch.Tensor]:
        """Views of what is behind the token ids, in the frame's order."""
        data, offset = torch.frombuffer(self.data, dtype=torch.uint8), 4 * len(self.tokens)
        for grid in self.codec.grids:
            for dtype, sizes in _parts(grid, self.shape, len(self.tokens)):
                end = offset + math.prod(sizes) * dtype.itemsize
                yield data[offset:end].view(dtype).view(sizes)
                offset = end

    def dequantized(self, device: torch.device | None = None) -> torch.Tensor:
        """`kv` as in `Block`, computed on `device`."""
        parts = (part if device is None else part.to(device) for part in self.parts())
        sizes = (self.shape.n_layer, 2, len(self.tokens), self.shape.width)
        kv = torch.empty(sizes, dtype=torch.float16, device=device)
        for which, grid in enumerate(self.codec.grids):
            taken = itertools.islice(parts, len(_parts(grid, self.shape, len(self.tokens))))
            _dequantize(list(taken), grid, kv[:, which])
        return kv


def _dequantize(parts: Sequence[torch.Tensor], grid: Grid | None, out: torch.Tensor) -> None:
    if grid is None:
        out.copy_(parts[0])
        return
    *sides, packed = parts
    scale = sides[-1].float()
    zero = -grid.middle * scale if grid.symmetric else sides[0].float()
    unpack_into(out, packed, zero, scale, grid)


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
    size = 4 * count + sum(_bytes(_parts(grid, shape, count)) for grid in codec.grids)
    data = _decompressed(body, size)
    tokens = tuple(np.frombuffer(data, "<i4", count).tolist())
    payload = Payload(codec, shape, tokens, data)
    if not all(torch.isfinite(part).all() for part in payload.parts() if part.is_floating_point()):
        raise BlockError("numbers are not finite")
    return payload


def _decompressed(body: memoryview, size: int) -> bytearray:
    """What a zstd frame holds, if that is `size` bytes and nothing follows it; never takes more memory than that."""
    try:
        # zstd would make room for whatever size the frame claims, whatever limit it is given.
        if zstandard.frame_content_size(body) != size:
            raise BlockError("payload of another size")
        decompressor = zstandard.ZstdDecompressor()
        return bytearray(decompressor.decompress(body, max_output_size=size, allow_extra_data=False))
    except zstandard.ZstdError as error:
        raise BlockError(str(error)) from error


def decode(frame: bytes, shape: KVShape, device: torch.device | None = None) -> Block:
    """The inverse of `encode`, whatever the codec; raises `BlockError` as `open_frame` does."""
    payload = open_frame(frame, shape)
    return Block(payload.tokens, payload.dequantized(device))
