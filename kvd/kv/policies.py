"""Which blocks leave the hot pool first: one interface, three ways to choose.

A policy is told of each question, of the bodies it wants, and of blocks that come and go. Vectors are unit vectors of
any one embedder, `[dimension]` float32; where there are none, similarity says nothing and the rest decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from kvd.errors import UsageError
from kvd.kv.bodies import Bodies, Floats, Rows, Vector

_KEEP_QUESTIONS, _KEEP_CODE = 0.7, 0.8
"""What a vector counts after one more question, where the recent ones are meant."""
_HALF_LIFE = 2000
"""Questions after which a use counts half."""
_AGE, _NEAR = 0.2, 3.0
"""Weights beside that of the logarithm of uses, which is 1."""


class Policy(Protocol):
    """Told what happens in the pool. `victims` only proposes: the pool passes over what is pinned."""

    def asked(self, question: Vector | None) -> None:
        """Another question begins."""
        ...

    def wanted(self, keys: Sequence[bytes], chunk: Vector | None) -> None:
        """The question wants the body that these blocks make up, first to last; in the pool or not."""
        ...

    def expected(self, keys: Sequence[bytes], chunk: Vector | None) -> None:
        """A guess brings in what is missing of a body that no question has wanted yet: a use of nothing."""
        ...

    def added(self, key: bytes) -> None: ...

    def used(self, key: bytes) -> None: ...

    def removed(self, key: bytes) -> None: ...

    def victims(self) -> Iterator[bytes]:
        """The pool's blocks, first to leave first. Nothing is told while it is read."""
        ...


class LeastRecentlyUsed:
    """What was used longest ago leaves first."""

    def __init__(self) -> None:
        self._order: OrderedDict[bytes, None] = OrderedDict()

    def asked(self, question: Vector | None) -> None:
        """Nothing to learn from it."""

    def wanted(self, keys: Sequence[bytes], chunk: Vector | None) -> None:
        """Nothing to learn from it: what is wanted is used soon."""

    def expected(self, keys: Sequence[bytes], chunk: Vector | None) -> None:
        """Nothing to learn from it."""

    def added(self, key: bytes) -> None:
        self._order[key] = None

    def used(self, key: bytes) -> None:
        self._order.move_to_end(key)

    def removed(self, key: bytes) -> None:
        del self._order[key]

    def victims(self) -> Iterator[bytes]:
        return iter(self._order)


class Trail:
    """Where vectors point on average, of which earlier ones count less and less."""

    def __init__(self, keep: float) -> None:
        self._sum: Vector = np.zeros(0, np.float32)
        self._keep = keep

    def fade(self) -> None:
        self._sum *= self._keep

    def add(self, vector: Vector | None) -> None:
        if vector is not None:
            self._sum = self._sum + vector if self._sum.shape == vector.shape else vector.copy()

    @property
    def direction(self) -> Vector:
        """Of length 1; 0, and perhaps empty, where there was nothing."""
        direction: Vector = self._sum / max(float(np.linalg.norm(self._sum)), 1e-9)
        return direction


class _ByBody(ABC):
    """Ranks bodies by `_worth`, least first, and takes a body's blocks from its end.

    Bodies, because their blocks are recalled together; from the end, because what is left of a body is of use as far as
    it reaches from its start. All are ranked at once, when a question first needs room: a few vector operations for a
    question, next to nothing for a block. What the question at hand wants comes last.
    """

    rates: tuple[float, ...] = ()

    def __init__(self) -> None:
        self._bodies = Bodies(self.rates)
        self._order: list[int] = []
        self._start = 0
        self._ranked = False

    def asked(self, question: Vector | None) -> None:
        self._bodies.next_question()
        self._ranked = False

    def wanted(self, keys: Sequence[bytes], chunk: Vector | None) -> None:
        self._bodies.want(keys, chunk)
        self._ranked = False

    def expected(self, keys: Sequence[bytes], chunk: Vector | None) -> None:
        self._bodies.expect(keys, chunk)
        self._ranked = False

    def added(self, key: bytes) -> None:
        if not self._bodies.add(key):
            # A block that no body announced is a body of its own.
            self.wanted((key,), None)
            self._bodies.add(key)
        if not self._bodies.is_wanted(key):
            # What only a guess wants was not ranked while nothing of it was there.
            self._ranked = False

    def used(self, key: bytes) -> None:
        if not self._bodies.is_wanted(key):
            self.wanted(self._bodies.chain_of(key), None)

    def removed(self, key: bytes) -> None:
        self._bodies.remove(key)

    def victims(self) -> Iterator[bytes]:
        bodies = self._bodies
        if not self._ranked:
            self._rank()
        while self._start < len(self._order) and bodies.is_spent(self._order[self._start]):
            self._start += 1
        for position in range(self._start, len(self._order)):
            yield from bodies.blocks_from_end(self._order[position])

    def _rank(self) -> None:
        bodies, rows = self._bodies, self._bodies.in_play()
        worth = np.where(bodies.last[rows] == bodies.now, np.inf, self._worth(rows))
        self._order = rows[np.lexsort((bodies.touched[rows], worth))].tolist()
        self._start, self._ranked = 0, True

    @abstractmethod
    def _worth(self, rows: Rows) -> Floats:
        """What the bodies of these rows are worth, one relative to the other."""


class Semantic(_ByBody):
    """What is least like the recent questions leaves first; between equals, what was wanted longest ago."""

    def __init__(self) -> None:
        super().__init__()
        self._recent = Trail(_KEEP_QUESTIONS)

    def asked(self, question: Vector | None) -> None:
        super().asked(question)
        self._recent.fade()
        self._recent.add(question)

    def _worth(self, rows: Rows) -> Floats:
        return self._bodies.nearness(rows, self._recent.direction)


class Combined(_ByBody):
    """Weighs how often and how lately questions wanted a body, and how near it is to the code that they want lately.

    The sum is about the logarithm of the odds that one of the next hundred questions wants the body; its weights come
    from a logistic regression on generated traces (docs/benchmarks.md), as does the choice of these three out of some
    twenty. Uses decay, so that what was popular once goes in the end. They are remembered for a while after a body has
    left, as in LRFU (Lee et al. 2001) and ARC's ghost lists (Megiddo and Modha 2003): it need not prove itself again.
    """

    rates = (0.5 ** (1 / _HALF_LIFE),)

    def __init__(self) -> None:
        super().__init__()
        self._code = Trail(_KEEP_CODE)

    def asked(self, question: Vector | None) -> None:
        super().asked(question)
        self._code.fade()

    def wanted(self, keys: Sequence[bytes], chunk: Vector | None) -> None:
        super().wanted(keys, chunk)
        self._code.add(chunk)

    def _worth(self, rows: Rows) -> Floats:
        bodies = self._bodies
        # What is wanted now has age 0; it is kept whatever this says.
        age = np.maximum(1, bodies.now - bodies.last[rows])
        # What only a guess has brought in counts as used once.
        uses = np.log(np.maximum(1.0, bodies.uses[rows, 0])) + age * np.log(self.rates[0])
        worth: Floats = uses - _AGE * np.log(age) + _NEAR * bodies.nearness(rows, self._code.direction)
        return worth


POLICIES: dict[str, Callable[[], Policy]] = {"lru": LeastRecentlyUsed, "semantic": Semantic, "combined": Combined}


def policy_named(name: str) -> Policy:
    """A new policy. Raises `UsageError` for an unknown name."""
    if name not in POLICIES:
        raise UsageError(f"there is no eviction policy {name!r}", hint=f"one of {', '.join(POLICIES)}")
    return POLICIES[name]()
