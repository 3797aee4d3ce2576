"""Moving keys: the rotary embedding (Su et al. 2021, "RoFormer") applied to stored keys.

A key that llama.cpp rotated to position p is rotated by -p for storage and by +q for use at position q.
"""

from __future__ import annotations

import torch

from kvd.types import Rope


class Rotation:
    """Rotates keys of one model. Raises `ValueError` for a pairing it does not know."""

    def __init__(self, rope: Rope, device: torch.device | None = None) -> None:
        if rope.pairing not in ("neox", "norm"):
            raise ValueError(f"unknown pairing {rope.pairing!r}")
        self._rope = rope
        self._frequencies = torch.tensor(rope.frequencies, dtype=torch.float64, device=device)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin), each `[tokens, 1, n_rot/2]` float32, for `positions` `[tokens]` (negative: back)."""
        # In float64: position x frequency reaches tens of thousands of radians.
        angle = positions.to(self._frequencies).unsqueeze(1) * self._frequencies
        return angle.cos().float().unsqueeze(1), angle.sin().float().unsqueeze(1)

    def rotate(self, keys: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor) -> None:
        """Write the rotated `keys` to `out`; both `[tokens, width]` float16 of one layer, and not the same."""
        rope = self._rope
        heads = keys.view(keys.shape[0], -1, rope.head_dim)
        target = out.view(out.shape[0], -1, rope.head_dim)
        first, second = self._pairs(heads)
        cos, sin = angles
        x, y = first.float(), second.float()
        new_first, new_second = self._pairs(target)
        new_first.copy_((x * cos).addcmul_(y, sin, value=-1))
        new_second.copy_((x * sin).addcmul_(y, cos))
        if rope.n_rot < rope.head_dim:
            target[..., rope.n_rot :] = heads[..., rope.n_rot :]

    def _pairs(self, heads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The two members of every rotated pair, `[tokens, heads, n_rot/2]` views."""
        rotated = heads[..., : self._rope.n_rot]
        if self._rope.pairing == "norm":
            return rotated[..., 0::2], rotated[..., 1::2]
        half = self._rope.n_rot // 2
        return rotated[..., :half], rotated[..., half:]
