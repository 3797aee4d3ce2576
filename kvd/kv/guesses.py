"""What guesses at the next question may keep in the hot pool, and what they may not bring back into it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

LEASE_SECONDS = 60.0
"""How long what was brought in for a draft of a question stays: people finish a sentence, or give it up."""
COOL_DOWN_SECONDS = 60.0
"""What was evicted within that time is not brought back before a question wants it."""

Clock = Callable[[], float]
"""Gives seconds."""


@dataclass(slots=True)
class _Lease:
    keys: set[bytes]
    ends: float


class Leases:
    """Pins with a time limit, one set of blocks for each holder; where room is short, they give way, oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[Hashable, _Lease] = {}
        """Oldest first."""

    def start(self, holder: Hashable, keys: Iterable[bytes], seconds: float) -> None:
        """Keep these blocks for so long, instead of what `holder` leased before."""
        self._held.pop(holder, None)
        if leased := set(keys):
            self._held[holder] = _Lease(leased, self._clock() + seconds)

    def forget(self, key: bytes) -> None:
        """A block is gone."""
        for lease in self._held.values():
            lease.keys.discard(key)

    def keys(self) -> set[bytes]:
        """What is leased now."""
        return {key for lease in self._running() for key in lease.keys}

    def leased_last(self, keys: Iterable[bytes]) -> Iterator[bytes]:
        """`keys` in their order, but those that are leased behind all others, by age of the newest lease on each."""
        ages = {key: age for age, lease in enumerate(self._running()) for key in lease.keys}
        leased = []
        for key in keys:
            if key in ages:
                leased.append(key)
            else:
                yield key
        yield from sorted(leased, key=ages.__getitem__)

    def _running(self) -> list[_Lease]:
        now = self._clock()
        self._held = {holder: lease for holder, lease in self._held.items() if lease.ends > now}
        return list(self._held.values())


class CoolDown:
    """Blocks evicted so lately that only a question brings them back, not a guess at the next one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._evicted: OrderedDict[bytes, float] = OrderedDict()
        """Oldest first; those that are cooling down and, until the next one, a few more."""

    def evicted(self, key: bytes) -> None:
        now = self._clock()
        self._evicted[key] = now
        self._evicted.move_to_end(key)
        while now - next(iter(self._evicted.values())) >= COOL_DOWN_SECONDS:
            self._evicted.popitem(last=False)

    def __contains__(self, key: bytes) -> bool:
        evicted = self._evicted.get(key)
        return evicted is not None and self._clock() - evicted < COOL_DOWN_SECONDS
