"""Bringing code into the hot pool that a question may want soon: a guess, which costs questions nothing.

It loads only while nobody asks, takes the room of what neither a question has pinned nor another guess leased, and
counts as no look-up, no use and no observation of what loading costs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from kvd.kv.pager import BlockAddress, Body, Pager
from kvd.kv.pool import pages_for


@dataclass(frozen=True, slots=True)
class Prefetched:
    """Blocks of a guess: in the pool before it, loaded by it, and not there (not stored whole, no room, given up for
    others in the last minute, or interrupted)."""

    hot: int
    loaded: int
    missing: int


def prefetch(pager: Pager, bodies: Sequence[Body], holder: Hashable, interrupted: Callable[[], bool]) -> Prefetched:
    """Bring bodies into the pool as far as the store has them whole, the first ones first, and lease them to `holder`.

    The lease takes the place of the one that `holder` had. Ends before the next block once `interrupted()`.
    """
    chains = [pager.addresses(body) for body in bodies]
    # In a dictionary, because bodies may share blocks.
    keys = list(dict.fromkeys(link.key for chain in chains for link in chain))

    def lease() -> None:
        pager.pool.lease(holder, keys)

    lease()
    hot = sum(key in pager.pool for key in keys)
    loaded = 0
    for body, chain in zip(bodies, chains, strict=True):
        missing = [link for link in chain if link.key not in pager.pool]
        if not missing or interrupted() or not _has_place(pager, chain, missing):
            continue
        frames = pager.read(missing)
        if len(frames) < len(missing):
            # To be computed whole when it is asked for.
            continue
        pager.pool.policy.expected([link.key for link in chain], body.vector)
        for link in missing:
            if interrupted() or pager.load(link, frames[link.key]) is None:
                break
            # At once: the next block must not take its place.
            lease()
            loaded += 1
    pager.counts["prefetched"] += loaded
    return Prefetched(hot, loaded, len(keys) - hot - loaded)


def _has_place(pager: Pager, chain: Sequence[BlockAddress], missing: Sequence[BlockAddress]) -> bool:
    """Whether what is missing of a body may come in: it fits beside what is pinned or leased, and others did not need
    the room of any of it in the last minute."""
    pool = pager.pool
    fits = sum(pages_for(len(link.tokens), pool.page_tokens) for link in missing) <= pool.spare_pages()
    return fits and not any(link.key in pool.cooling_down for link in chain)
