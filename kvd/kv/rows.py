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
    """Tokens scattered over pages, `_pool` being `[pages, n_layer, 2, page_tokens, width]`.

    `_first` is `[tokens]`: where each token's keys of layer 0 are among all the pool's rows of `width`. Picking whole
    rows by one index is several times as fast as indexing by page and slot.
    """

    _pool: torch.Tensor
    _first: torch.Tensor

    def only(self, indices: Sequence[int]) -> Rows:
        """Some of the tokens, in this order."""
        return Rows(self._pool, self._first[torch.tensor(indices, dtype=torch.int64, device=self._first.device)])

    def keys(self, layer: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """`[tokens, width]` float16, a copy, at position 0; in `out` if that is given."""
        return self._pick(2 * layer, out)

    def values(self, layer: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """`[tokens, width]` float16, a copy; in `out` if that is given."""
        return self._pick(2 * layer + 1, out)

    def _pick(self, part: int, out: torch.Tensor | None) -> torch.Tensor:
        *_, page_tokens, width = self._pool.shape
        return torch.index_select(self._pool.view(-1, width), 0, self._first + part * page_tokens, out=out)

    @property
    def on_host(self) -> bool:
        return self._pool.device.type == "cpu"

    def write(self, rotation: Rotation, positions: Sequence[int], layers: Iterable[tuple[Half, Half]]) -> None:
        """Fill each layer's keys, rotated to `positions`, and values: `[tokens, width]` each, in host memory.

        All is computed where the pool is, which is where `rotation` has to be. From a GPU a layer is copied down
        while the next one is computed, if the memory that it goes to is pinned.
        """
        angles = rotation.angles(torch.tensor(positions))
        room = self._pool.new_empty((2, len(positions), self._pool.shape[-1]))
        for layer, (keys, values) in enumerate(layers):
            stored, target = self.keys(layer, room[0]), torch.from_numpy(keys)
            if self.on_host:
                rotation.rotate(stored, angles, target)
                self.values(layer, torch.from_numpy(values))
            else:
                # Strided writes across the bus are slow: keys are rotated into one piece first.
                rotation.rotate(stored, angles, room[1])
                target.copy_(room[1], non_blocking=True)
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
