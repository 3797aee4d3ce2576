"""The cold form of a KV block: INT4 with zero points, packed, zstd-compressed, checked.

Keys come rotated back to position 0. They are quantized per channel over the block's tokens: the keys of real
models carry large offsets per channel, which a zero point per channel absorbs and a scale shared along the head
does not. Values are quantized per token in groups of channels. Both use q = round((x - zero) / scale) with
zero = min and scale = (max - min) / 15, kept as float16.

A frame is `_HEADER` and a zstd frame with zstd's own content checksum; inside, in order:

    tokens      i32 [tokens]                    compared again on a hit
    k_zero      f16 [n_layer, width]            k_scale likewise
    v_zero      f16 [n_layer, tokens, groups]   v_scale likewise
    k, v        u8  [n_layer, tokens, width/2]  low nibble: first half of a row, high nibble: second half
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import zstandard

from kvd.types import KVShape

VERSION = 1
BLOCK_TOKENS = 128
"""Most tokens in a block: keys' scales are shared by so many."""

_MAGIC = b"KVD\x01"
_INT4 = 4
_LEVELS = 15
_GROUP = 64
_ZSTD_LEVEL = 3
_HEADER = struct.Struct("<4sBBHHHII")
"""magic, version, bits, layers, tokens, group, width, crc32 of the fields before it and of the zstd frame"""


class BlockError(Exception):
    """A frame is damaged, or of another kind than asked for."""


@dataclass(frozen=True, slots=True)
class Block:
    """A decoded block: token ids, and `kv` as `[n_layer, 2, tokens, width]` float16 (keys at position 0)."""

    tokens: tuple[int, ...]
    kv: torch.Tensor


def value_group(width: int) -> int:
    """Channels of a token's values that share a scale: 64, or what divides a narrower model's width."""
    group = _GROUP
    while width % group:
        group //= 2
    return group


def codec_id(shape: KVShape) -> str:
    """What a block's fingerprint says of its codec."""
    return f"int4-v{VERSION}-k:channel-v:{value_group(shape.width)}"


def _quantize(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`x` float32 -> (codes u8 like `x`, zero f16, scale f16), the latter without `dim`."""
    low, high = torch.aminmax(x, dim=dim, keepdim=True)
    zero = low.half()
    # Rounded up, so that the float16 grid still reaches the largest value.
    scale = ((high - zero.float()) / _LEVELS * (1 + 2**-11)).half()
    step = scale.float()
    codes = ((x - zero.float()) / torch.where(step > 0, step, 1.0)).round_().clamp_(0, _LEVELS)
    return codes.to(torch.uint8), zero.squeeze(dim), scale.squeeze(dim)


def _pack(codes: torch.Tensor) -> torch.Tensor:
    low, high = codes.chunk(2, dim=-1)
    return low | (high << 4)


def _raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().cpu().numpy().tobytes()


def encode(tokens: Sequence[int], kv: torch.Tensor) -> bytes:
    """The frame of a block; `kv` as in `Block`, at most `BLOCK_TOKENS` tokens, on any device."""
    n_layer, _, count, width = kv.shape
    group = value_group(width)
    keys, k_zero, k_scale = _quantize(kv[:, 0].float(), dim=1)
    grouped = kv[:, 1].float().view(n_layer, count, width // group, group)
    values, v_zero, v_scale = _quantize(grouped, dim=3)
    payload = b"".join(
        (
            np.asarray(tokens, "<i4").tobytes(),
            *(_raw(part) for part in (k_zero, k_scale, v_zero, v_scale)),
            _raw(_pack(keys)),
            _raw(_pack(values.view(n_layer, count, width))),
        )
    )
    body = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(payload)
    fields = (_MAGIC, VERSION, _INT4, n_layer, count, group, width)
    crc = zlib.crc32(body, zlib.crc32(_HEADER.pack(*fields, 0)))
    return _HEADER.pack(*fields, crc) + body


def _opened(frame: bytes, shape: KVShape) -> tuple[int, int, bytes]:
    """(tokens, group, payload) of a frame that is whole and of this shape; raises `BlockError`."""
    if len(frame) < _HEADER.size:
        raise BlockError("frame is cut off")
    *fields, crc = _HEADER.unpack_from(frame)
    magic, version, bits, n_layer, count, group, width = fields
    if (magic, version, bits) != (_MAGIC, VERSION, _INT4):
        raise BlockError("frame of another codec")
    if crc != zlib.crc32(frame[_HEADER.size :], zlib.crc32(_HEADER.pack(*fields, 0))):
        raise BlockError("checksum differs")
    if (n_layer, width, group) != (shape.n_layer, shape.width, value_group(shape.width)):
        raise BlockError("frame of another model's shape")
    if not 0 < count <= BLOCK_TOKENS:
        raise BlockError(f"frame of {count} tokens")
    size = 4 * count + 4 * n_layer * width + 4 * n_layer * count * (width // group) + n_layer * count * width
    try:
        payload = zstandard.ZstdDecompressor().decompress(frame[_HEADER.size :], max_output_size=size)
    except zstandard.ZstdError as error:
        raise BlockError(str(error)) from error
    if len(payload) != size:
        raise BlockError("payload of another size")
    return count, group, payload


def _unpack_into(out: torch.Tensor, packed: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor) -> None:
    """out = codes x scale + zero; `out` is `[..., width]` float16, `packed` `[..., width/2]` uint8."""
    half = packed.shape[-1]
    for part, codes in ((slice(0, half), packed & 15), (slice(half, None), packed >> 4)):
        out[..., part] = torch.addcmul(zero[..., part], codes.float(), scale[..., part])


def decode(frame: bytes, shape: KVShape, device: torch.device | None = None) -> Block:
    """The inverse of `encode`; raises `BlockError` for a frame that is damaged or of another model's shape."""
    count, group, payload = _opened(frame, shape)
    n_layer, width = shape.n_layer, shape.width
    data = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    offset = 0

    def take(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
        nonlocal offset
        end = offset + int(np.prod(sizes)) * dtype.itemsize
        part = data[offset:end].view(dtype).view(sizes)
        offset = end
        return part.to(device) if device is not None else part

    tokens = tuple(take(torch.int32, count).tolist())
    k_zero, k_scale = (take(torch.float16, n_layer, 1, width).float() for _ in range(2))
    v_zero, v_scale = (
        take(torch.float16, n_layer, count, width // group).float().repeat_interleave(group, dim=2) for _ in range(2)
    )
    kv = torch.empty((n_layer, 2, count, width), dtype=torch.float16, device=device)
    _unpack_into(kv[:, 0], take(torch.uint8, n_layer, count, width // 2), k_zero, k_scale)
    _unpack_into(kv[:, 1], take(torch.uint8, n_layer, count, width // 2), v_zero, v_scale)
    return Block(tokens, kv)
