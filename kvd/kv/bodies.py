"""What eviction policies know of bodies, in rows of arrays: those in the pool, and for a while those that left it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating[Any]]
Rows = npt.NDArray[np.intp]

_REMEMBERED = 4
"""Bodies that left are remembered up to so many times the number of those that are there, at least `_FEW`."""
_FEW = 1024


class Bodies:
    """One row for each body. A body is named by its last block's key, which covers all of its tokens.

    Arrays have room for more rows than are in use. Time counts questions.
    """

    def __init__(self, rates: Sequence[float] = ()) -> None:
        self.now = 0
        self.rates = np.asarray(rates, np.float64)
        """What a use counts after each further question, one entry for each way to count."""
        self.last: Rows = np.zeros(0, np.intp)
        """The last question that wanted the body."""
        self.touched: Rows = np.zeros(0, np.intp)
        """Tells apart what the same question wanted: higher is later."""
        self.uses = np.zeros((0, len(self.rates)))
        """Decayed counts of the questions that wanted the body, as of `last`, by `rates`."""
        self.vectors: Vector = np.zeros((0, 0), np.float32)
        self._resident: Rows = np.zeros(0, np.intp)
        self._chains: list[tuple[bytes, ...]] = []
        self._rows: dict[bytes, int] = {}
        self._blocks: dict[bytes, int] = {}
        self._wanted: dict[bytes, int] = {}
        self._expected: dict[bytes, int] = {}
        self._unused: list[int] = []
        self._touches = 0

    def next_question(self) -> None:
        self.now += 1
        self._wanted.clear()
        self._expected.clear()

    def want(self, keys: Sequence[bytes], vector: Vector | None) -> None:
        """Count a use of the body of blocks `keys`, known or not, once for a question."""
        row = self._row_of(keys)
        counted = self._wanted.get(keys[-1]) == row
        self._wanted.update(dict.fromkeys(keys, row))
        for key in keys:
            if key in self._blocks:
                # A block that bodies share belongs to the one that wanted it last.
                self._resident[self._blocks[key]] -= 1
                self._resident[row] += 1
                self._blocks[key] = row
        if vector is not None:
            self._set_vector(row, vector)
        self._touches += 1
        if not counted:
            self.uses[row] = self.uses[row] * self.rates ** (self.now - self.last[row]) + 1.0
        self.last[row], self.touched[row] = self.now, self._touches

    def expect(self, keys: Sequence[bytes], vector: Vector | None) -> None:
        """Note the body whose blocks are about to come into the pool though no question has wanted them yet."""
        known = keys[-1] in self._rows
        row = self._row_of(keys)
        if not known:
            # As though the question before had wanted it: the one at hand does not.
            self._touches += 1
            self.last[row], self.touched[row] = self.now - 1, self._touches
            if vector is not None:
                self._set_vector(row, vector)
        self._expected = dict.fromkeys(keys, row)

    def _row_of(self, keys: Sequence[bytes]) -> int:
        row = self._rows.get(keys[-1])
        if row is None:
            row = self._new_row(keys[-1])
        if len(keys) > len(self._chains[row]):
            # Not where a block comes alone whose body is known.
            self._chains[row] = tuple(keys)
        return row

    def add(self, key: bytes) -> bool:
        """Note that a block came into the pool; False, and nothing noted, where no body of this question or of the last
        guess has it."""
        row = self._wanted.get(key, self._expected.get(key))
        if row is None:
            return False
        self._blocks[key] = row
        self._resident[row] += 1
        return True

    def remove(self, key: bytes) -> None:
        self._resident[self._blocks.pop(key)] -= 1

    def is_wanted(self, key: bytes) -> bool:
        """Whether the question at hand wants the body of this block."""
        return key in self._wanted

    def chain_of(self, key: bytes) -> tuple[bytes, ...]:
        """The blocks of the body that a block of the pool belongs to, first to last."""
        return self._chains[self._blocks[key]]

    def in_play(self) -> Rows:
        """Rows of the bodies that have blocks in the pool or that the question at hand wants."""
        rows: Rows = np.flatnonzero((self._resident > 0) | (self.last == self.now))
        return rows

    def is_spent(self, row: int) -> bool:
        """Whether nothing of a body is in the pool, nor wanted now."""
        return not self._resident[row] and self.last[row] != self.now

    def blocks_from_end(self, row: int) -> Iterator[bytes]:
        """A body's blocks in the pool, the last one first."""
        return (key for key in reversed(self._chains[row]) if self._blocks.get(key) == row)

    def nearness(self, rows: Rows, direction: Vector) -> Floats:
        """`[rows]`: each body's product with `direction`; 0 for all where that is of another length."""
        if self.vectors.shape[1] != direction.size:
            return np.zeros(len(rows))
        nearness: Floats = self.vectors[rows] @ direction
        return nearness

    def _set_vector(self, row: int, vector: Vector) -> None:
        if self.vectors.shape[1] != vector.size:
            # The first vector, or another embedder's, with which earlier ones can't be compared.
            self.vectors = np.zeros((len(self.last), vector.size), np.float32)
        self.vectors[row] = vector

    def _new_row(self, name: bytes) -> int:
        if not self._unused:
            self._forget()
        if not self._unused:
            self._grow()
        row = self._unused.pop()
        self._rows[name] = row
        # No question has wanted it; a use that counts nothing.
        self.uses[row], self.last[row], self.vectors[row] = 0.0, self.now, 0.0
        return row

    def _forget(self) -> None:
        """Give up the rows of the bodies that left longest ago: half of what may be remembered, when it is full."""
        gone = np.flatnonzero((self._resident == 0) & (self.last != self.now))
        allowed = max(_FEW, _REMEMBERED * (len(self.last) - len(gone)))
        if len(gone) < allowed:
            return
        oldest = gone[np.argsort(self.last[gone], kind="stable")][: len(gone) - allowed // 2].tolist()
        self._expected.clear()
        for row in oldest:
            del self._rows[self._chains[row][-1]]
            self._chains[row] = ()
        self._unused += oldest

    def _grow(self) -> None:
        size = len(self.last)
        more = max(64, size)
        self._unused += range(size + more - 1, size - 1, -1)
        self._chains += [()] * more
        # Rows that were never used count as having left before the first question.
        self.last = np.concatenate([self.last, np.full(more, -1, np.intp)])
        self.touched = np.concatenate([self.touched, np.zeros(more, np.intp)])
        self._resident = np.concatenate([self._resident, np.zeros(more, np.intp)])
        self.uses = np.concatenate([self.uses, np.zeros((more, len(self.rates)))])
        self.vectors = np.concatenate([self.vectors, np.zeros((more, self.vectors.shape[1]), np.float32)])
