"""Uniform quantization of one axis' worth of values to codes, and back. Torch, the same on cpu and cuda."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Grid:
    """How numbers become codes of `bits` bits.

    With a zero point, zero = min and scale = (max - min) / (2^bits - 1). `symmetric` is the textbook formula
    scale = max|x| / (2^(bits-1) - 1), here to be compared with: the keys of real models lie far from zero.
    """

    bits: int
    symmetric: bool = False

    @property
    def levels(self) -> int:
        return (1 << self.bits) - 1

    @property
    def per_byte(self) -> int:
        """Codes in a byte. Those of 3 or 5 bits are not packed any closer: zstd's entropy coder does that better."""
        return 2 if self.bits <= 4 else 1

    @property
    def middle(self) -> int:
        """The code of 0.0 in a symmetric grid."""
        return 1 << (self.bits - 1)


def quantize(x: torch.Tensor, dim: int, grid: Grid) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`x` float32 -> (codes uint8 like `x`, zero and scale float16 without `dim`)."""
    if grid.symmetric:
        scale = _grown(x.abs().amax(dim=dim, keepdim=True) / (grid.middle - 1))
        zero = -grid.middle * scale
    else:
        low, high = torch.aminmax(x, dim=dim, keepdim=True)
        zero = low.half()
        scale = _grown((high - zero.float()) / grid.levels)
    step = scale.float()
    codes = ((x - zero.float()) / torch.where(step > 0, step, 1.0)).round_().clamp_(0, grid.levels)
    return codes.to(torch.uint8), zero.squeeze(dim), scale.squeeze(dim)


def _grown(scale: torch.Tensor) -> torch.Tensor:
    """As float16, rounded up so that the grid still reaches the largest value."""
    return (scale * (1 + 2**-11)).half()


def pack(codes: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Codes `[..., width]` to bytes; where two make a byte, the first half of a row is in the low nibbles."""
    if grid.per_byte == 1:
        return codes
    low, high = codes.chunk(2, dim=-1)
    return low | (high << 4)


def unpack_into(out: torch.Tensor, packed: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor, grid: Grid) -> None:
    """out = codes x scale + zero; `out` is `[..., width]` float16, `zero` and `scale` float32 and broadcast to it."""
    values = torch.empty(out.shape, dtype=torch.float32, device=out.device)
    if grid.per_byte == 1:
        values.copy_(packed)
    else:
        half = packed.shape[-1]
        values[..., :half] = packed & 15
        values[..., half:] = packed >> 4
    out.copy_(torch.addcmul(zero, values, scale, out=values))
