"""From the pool's pages to where a prompt wants its KV: gathered, keys rotated, in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvd.kv.rope import Rotation

Half = npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Rows:
    """Tokens scattered over pages; `pages` and `slots` are `[tokens]`."""

    _pool: torch.Tensor
    pages: torch.Tensor
    slots: torch.Tensor

    def keys(self, layer: int) -> torch.Tensor:
        """`[tokens, width]` float16, a copy, at position 0."""
        return self._pool[self.pages, layer, 0, self.slots]

    def values(self, layer: int) -> torch.Tensor:
        """`[tokens, width]` float16, a copy."""
        return self._pool[self.pages, layer, 1, self.slots]

    @property
    def on_host(self) -> bool:
        return self._pool.device.type == "cpu"

    def write(self, rotation: Rotation, positions: Sequence[int], layers: Iterable[tuple[Half, Half]]) -> None:
        """Fill each layer's keys, rotated to `positions`, and values: `[tokens, width]` each, in host memory.

        All is computed where the pool is, which is where `rotation` has to be. From a GPU a layer is copied down
        while the next one is computed, if the memory that it goes to is pinned.
        """
        angles = rotation.angles(torch.tensor(positions))
        # Strided writes across the bus are slow: keys are rotated into one piece first.
        staged = None if self.on_host else self._pool.new_empty((len(positions), self._pool.shape[-1]))
        for layer, (keys, values) in enumerate(layers):
            target = torch.from_numpy(keys)
            rotation.rotate(self.keys(layer), angles, target if staged is None else staged)
            if staged is not None:
                target.copy_(staged, non_blocking=True)
            torch.from_numpy(values).copy_(self.values(layer), non_blocking=True)
        if self._pool.is_cuda:
            torch.cuda.current_stream(self._pool.device).synchronize()


def host_memory(size: int, pinned: bool) -> npt.NDArray[np.uint8]:
    """`[size]` bytes, their content undefined. `pinned`: of pages that stay where they are, which a GPU copies from
    and to several times as fast; ordinary ones where the system refuses.
    """
    if pinned:
        try:
            memory: npt.NDArray[np.uint8] = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        except RuntimeError:
            pass
        else:
            return memory
    return np.empty(size, np.uint8)
