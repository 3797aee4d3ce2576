"""The block table of a growing sequence: whole blocks that sequences share, then an unfinished tail."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvd.kv.codec import BLOCK_TOKENS
from kvd.kv.pager import Pager, Tokens
from kvd.kv.pool import Resident
from kvd.kv.rows import Rows
from kvd.kv.store import StoredBlock


class BlockTable:
    """A sequence's KV in the hot pool, from `head` (the tokens before it) on.

    A block of `codec.BLOCK_TOKENS` tokens goes through the codec once, when it is full, and is then found by its
    content address: sequences that say the same hold one copy. The tail stays as it was computed. `fork` shares all
    blocks; whoever appends next gets a tail of its own (copy-on-write), so no sequence sees what another says later.
    """

    def __init__(self, pager: Pager, head: Tokens = ()) -> None:
        self._pager, self._pool = pager, pager.pool
        self._parent = pager.root(head)
        self._whole: list[Resident] = []
        self._tail = self._pool.new_tail()

    @property
    def tokens(self) -> Tokens:
        return tuple(token for block in self.blocks for token in block.tokens)

    @property
    def blocks(self) -> list[Resident]:
        return [*self._whole, self._tail]

    def append(self, tokens: Sequence[int], kv: torch.Tensor) -> list[StoredBlock]:
        """Write `kv` (`[n_layer, 2, tokens, width]`, keys at position 0) behind what there is.

        Returns the frames of the blocks that became full. Raises `PoolFullError`; a part may then have been written,
        `tokens` tells how much.
        """
        # A tail that was full before could not be sealed then, for want of room.
        frames, start = self._sealed(), 0
        while start < len(tokens):
            end = min(len(tokens), start + BLOCK_TOKENS - len(self._tail.tokens))
            self._tail = self._pool.append(self._tail, tokens[start:end], kv[:, :, start:end])
            frames += self._sealed()
            start = end
        return frames

    def _sealed(self) -> list[StoredBlock]:
        """Turn a full tail into a whole block; its frame."""
        if len(self._tail.tokens) < BLOCK_TOKENS:
            return []
        link = self._pager.address(self._parent, self._tail.tokens)
        block, frame = self._pager.seal(link, self._pool.content(self._tail))
        self._pool.release_tail(self._tail)
        self._whole.append(block)
        self._tail, self._parent = self._pool.new_tail(), link.key
        return [frame]

    def fork(self) -> BlockTable:
        """Another sequence with the same past."""
        other = BlockTable.__new__(BlockTable)
        other._pager, other._pool, other._parent = self._pager, self._pool, self._parent
        other._whole, other._tail = list(self._whole), self._tail
        self._pool.pin(self.blocks)
        return other

    def rows(self) -> Rows:
        """The sequence's tokens one after the other, to be read layer by layer."""
        return self._pool.rows(self.blocks)

    def close(self) -> None:
        """Give back every block. The table must not be used any more."""
        self._pool.unpin(self._whole)
        self._pool.release_tail(self._tail)
        self._whole = []
