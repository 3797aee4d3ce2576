"""Ways to quantize KV that were considered for the codec, simulated: what comes back, and the bytes they would take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import zstandard

from kvd.kv.codec import compressed
from kvd.kv.quantize import Grid, quantize

_DICTIONARY_BYTES, _SAMPLE_BYTES = 1 << 14, 1 << 12


@dataclass(frozen=True, slots=True)
class Side:
    """Keys or values. `axis` is what shares a scale: a "channel" over the block's tokens, a "token" over `group`
    channels, or the whole "tensor" of a layer. `late_bits` is for the second half of the layers."""

    bits: int = 4
    axis: str = "channel"
    group: int = 64
    symmetric: bool = False
    hadamard: bool = False
    shared_zero: bool = False
    late_bits: int | None = None


@dataclass(frozen=True, slots=True)
class Scheme:
    """Both sides, at most `block` tokens in a block, and how the bytes are packed and compressed."""

    name: str
    keys: Side = Side()
    values: Side = Side()
    block: int = 128
    exact_first: int = 0
    level: int = 3
    dictionary: bool = False
    neighbours: bool = False
    """Pack neighbouring codes into a byte instead of the two halves of a row."""


TOKEN = Side(axis="token")
FOUR = Scheme("K and V per channel, 4 bits, 128 tokens")
SHIPPED = replace(FOUR, name="as shipped: K 5 bits, V 3 bits", keys=Side(bits=5), values=Side(bits=3))
SCHEMES = (
    SHIPPED,
    FOUR,
    replace(FOUR, name="V per token, groups of 32", values=replace(TOKEN, group=32)),
    replace(FOUR, name="V per token, groups of 64", values=TOKEN),
    replace(FOUR, name="V per token, groups of 64, symmetric", values=replace(TOKEN, symmetric=True)),
    replace(FOUR, name="V per token after a Hadamard rotation", values=replace(TOKEN, hadamard=True)),
    replace(FOUR, name="K per token, groups of 64", keys=TOKEN),
    replace(FOUR, name="K and V symmetric, max|x|/7", keys=Side(symmetric=True), values=Side(symmetric=True)),
    replace(
        FOUR,
        name="one symmetric scale for a tensor",
        keys=Side(axis="tensor", symmetric=True),
        values=Side(axis="tensor", symmetric=True),
    ),
    replace(FOUR, name="blocks of 64", block=64),
    replace(FOUR, name="blocks of 256", block=256),
    replace(FOUR, name="K zero shared by a body's blocks", keys=Side(shared_zero=True)),
    replace(FOUR, name="first 4 tokens of a body exact", exact_first=4),
    replace(FOUR, name="neighbouring codes in a byte", neighbours=True),
    replace(FOUR, name="zstd -1", level=1),
    replace(FOUR, name="zstd -9", level=9),
    replace(FOUR, name="zstd -19", level=19),
    replace(FOUR, name="zstd -3 with a trained dictionary", dictionary=True),
    replace(FOUR, name="3 bits in the second half of the layers", keys=Side(late_bits=3), values=Side(late_bits=3)),
    replace(FOUR, name="K 4 bits, V 3 bits", values=Side(bits=3)),
    replace(FOUR, name="K 3 bits, V 4 bits", keys=Side(bits=3)),
    replace(FOUR, name="K 5 bits, V 2 bits", keys=Side(bits=5), values=Side(bits=2)),
    replace(FOUR, name="K 5 bits, V 4 bits", keys=Side(bits=5)),
    replace(FOUR, name="3 bits", keys=Side(bits=3), values=Side(bits=3)),
    replace(FOUR, name="8 bits", keys=Side(bits=8), values=Side(bits=8)),
)


@dataclass(slots=True)
class Coded:
    """A body that went through a scheme: what comes back, its blocks' parts, and the entropy of its codes in bits."""

    kv: torch.Tensor
    payloads: list[list[bytes]]
    entropy_bits: float
    exact_bytes: int


def code(kv: torch.Tensor, scheme: Scheme) -> Coded:
    """Quantize a body `[n_layer, 2, tokens, width]` and back."""
    count = kv.shape[2]
    blocks = -(-count // scheme.block)
    bounds = [index * count // blocks for index in range(blocks + 1)]
    back = torch.empty_like(kv)
    result = Coded(back, [], 0.0, 0)
    zero = kv[:, 0].float().amin(dim=1, keepdim=True) if scheme.keys.shared_zero else None
    for start, end in itertools.pairwise(bounds):
        parts = []
        for which, side in ((0, scheme.keys), (1, scheme.values)):
            block = kv[:, which, start:end].float()
            found, codes, sides = _coded(block, side, zero if which == 0 else None)
            back[:, which, start:end] = found.half()
            parts += [*sides, *(_packed(layers, bits, scheme.neighbours) for layers, bits in codes)]
            result.entropy_bits += sum(_entropy(layers) for layers, _ in codes)
        result.payloads.append(parts)
    if scheme.exact_first:
        back[:, :, : scheme.exact_first] = kv[:, :, : scheme.exact_first]
        result.exact_bytes = kv[:, :, : scheme.exact_first].numel() * 2
    if zero is not None:
        result.exact_bytes += zero.numel() * 2
    return result


def _coded(
    x: torch.Tensor, side: Side, zero: torch.Tensor | None
) -> tuple[torch.Tensor, list[tuple[torch.Tensor, int]], list[bytes]]:
    """(what comes back, codes with their bits, scales as bytes) of one side of a block, `[n_layer, tokens, width]`."""
    half = len(x) // 2 if side.late_bits else len(x)
    back, codes, sides = [], [], []
    for layers, bits in ((slice(0, half), side.bits), (slice(half, None), side.late_bits or side.bits)):
        part = x[layers]
        if not len(part):
            continue
        found, coded, scales = _uniform(part, side, bits, None if zero is None else zero[layers])
        back.append(found)
        codes.append((coded, bits))
        sides += scales
    return torch.cat(back), codes, sides


def _uniform(
    x: torch.Tensor, side: Side, bits: int, zero: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, list[bytes]]:
    n_layer, tokens, width = x.shape
    turn = _hadamard(side.group) if side.hadamard else None
    if turn is not None:
        x = (x.view(n_layer, tokens, -1, side.group) @ turn).view(n_layer, tokens, width)
    shape, dim = {
        "channel": ((n_layer, tokens, width), 1),
        "token": ((n_layer, tokens, width // side.group, side.group), 3),
        "tensor": ((n_layer, tokens * width), 1),
    }[side.axis]
    if zero is not None:
        # The zero point leads: a row of it makes it the block's minimum.
        x = torch.cat([zero, x], dim=1)
        codes, low, scale = quantize(x, 1, Grid(bits))
        codes = codes[:, 1:]
    else:
        codes, low, scale = quantize(x.reshape(shape), dim, Grid(bits, side.symmetric))
    found = codes.float() * scale.float().unsqueeze(dim) + low.float().unsqueeze(dim)
    found = found.view(n_layer, tokens, width)
    if turn is not None:
        found = (found.view(n_layer, tokens, -1, side.group) @ turn).view(n_layer, tokens, width)
    kept = [scale] if side.symmetric or zero is not None else [low, scale]
    return found, codes.view(n_layer, tokens, width), [part.numpy().tobytes() for part in kept]


def _hadamard(size: int) -> torch.Tensor:
    """Sylvester's matrix, orthonormal and its own inverse."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(size)


def _packed(codes: torch.Tensor, bits: int, neighbours: bool) -> bytes:
    """A code a byte above 4 bits, else two: zstd's entropy coder closes the gap to what the codes need."""
    rows = codes.reshape(-1, codes.shape[-1])
    if bits > 4:
        return bytes(rows.numpy().tobytes())
    low, high = (rows[:, 0::2], rows[:, 1::2]) if neighbours else rows.chunk(2, dim=1)
    return bytes((low | (high << 4)).contiguous().numpy().tobytes())


def _entropy(codes: torch.Tensor) -> float:
    counts = torch.bincount(codes.reshape(-1).long()).double()
    share = counts[counts > 0] / counts.sum()
    return float(-(share * share.log2()).sum() * counts.sum())


def compressed_bytes(coded: Sequence[Coded], scheme: Scheme) -> int:
    """Of all blocks, each its own frame; a trained dictionary is counted too."""
    payloads = [payload for body in coded for payload in body.payloads]
    dictionary = None
    if scheme.dictionary:
        samples: list[Any] = [
            part[at : at + _SAMPLE_BYTES]
            for part in itertools.chain.from_iterable(payloads)
            for at in range(0, len(part), _SAMPLE_BYTES)
        ]
        dictionary = zstandard.train_dictionary(_DICTIONARY_BYTES, samples)
    compressor = zstandard.ZstdCompressor(level=scheme.level, dict_data=dictionary)
    size = sum(len(compressed(payload, compressor)) for payload in payloads)
    return size + sum(body.exact_bytes for body in coded) + (_DICTIONARY_BYTES if dictionary else 0)
