"""Guesses at the next question, with a real store and a real pool."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvd.kv.guesses import COOL_DOWN_SECONDS, LEASE_SECONDS
from kvd.kv.pager import Body, Pager
from kvd.kv.policies import POLICIES, policy_named
from kvd.kv.pool import PAGE_TOKENS, HotPool
from kvd.kv.prefetch import Prefetched, prefetch
from kvd.kv.store import BlockStore
from kvd.types import KVShape

SHAPE = KVShape(n_layer=2, width=64)
PAGE_BYTES = PAGE_TOKENS * SHAPE.bytes_per_token
LONG = Body((7, 8), tuple(range(300)))
"""Three blocks of seven pages."""
SHORT = Body((), tuple(range(1000, 1040)))
"""One block of three pages."""
OTHER = Body((), tuple(range(2000, 2040)))
FOURTH = Body((), tuple(range(3000, 3040)))
FIFTH = Body((), tuple(range(4000, 4040)))


class Rig:
    """A pager with an empty pool of so many pages, and a store that has all of these bodies."""

    def __init__(self, path: Path, pages: int, policy: str = "lru") -> None:
        self.now = 0.0
        self.store = BlockStore(path)
        if not self.store.stats()["blocks"]:
            filling = Pager(HotPool(SHAPE, 100 * PAGE_BYTES), self.store, SHAPE, b"model")
            for body in (LONG, SHORT, OTHER, FOURTH, FIFTH):
                self.store.put(filling.add(body, kv(len(body.tokens)))[1])
        self.pool = HotPool(SHAPE, pages * PAGE_BYTES, policy=policy_named(policy), clock=lambda: self.now)
        self.pager = Pager(self.pool, self.store, SHAPE, b"model")

    def guess(self, *bodies: Body, holder: int = 1, interrupted: Callable[[], bool] = lambda: False) -> Prefetched:
        done = prefetch(self.pager, bodies, holder, interrupted)
        self.pool.check_integrity()
        return done

    def ask(self, *bodies: Body) -> list[list[str] | None]:
        """Where a question found the blocks of each body."""
        found = self.pager.fetch(bodies)
        self.pager.release(found)
        self.pool.check_integrity()
        return [body.tiers if body else None for body in found]

    def there(self, *bodies: Body) -> list[bool]:
        return [link.key in self.pool for body in bodies for link in self.pager.addresses(body)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.db"


def kv(tokens: int) -> torch.Tensor:
    return torch.randn((2, 2, tokens, 64), generator=torch.Generator().manual_seed(tokens)).half()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_was_guessed_is_hot_for_the_question(path: Path, policy: str) -> None:
    rig = Rig(path, 24, policy)
    assert rig.guess(LONG, SHORT) == Prefetched(hot=0, loaded=4, missing=0)
    assert rig.guess(SHORT, LONG) == Prefetched(hot=4, loaded=0, missing=0)
    assert rig.ask(LONG, SHORT) == [["hot"] * 3, ["hot"]]


def test_a_guess_is_counted_apart_and_teaches_nothing(path: Path) -> None:
    rig = Rig(path, 100)
    rig.guess(LONG, SHORT, Body((), (1, 2, 3)))
    assert rig.pager.counts == {"swapped_in": 4, "prefetched": 4}
    assert not rig.pager.costs.load.known
    assert rig.pager.take_used() == set()
    rig.ask(LONG)
    assert rig.pager.counts["hot_hit"] == 3
    assert len(rig.pager.take_used()) == 3


def test_what_was_guessed_stays_for_a_minute_and_no_longer(path: Path) -> None:
    rig = Rig(path, 24)
    rig.guess(LONG)
    rig.now += LEASE_SECONDS - 1
    rig.guess(SHORT, holder=2)
    # Room for another three pages is nobody's but those that the second holds.
    assert rig.guess(OTHER, holder=3) == Prefetched(hot=0, loaded=0, missing=1)
    rig.now += 1
    assert rig.guess(OTHER, holder=3) == Prefetched(hot=0, loaded=1, missing=0)
    assert rig.there(LONG, SHORT, OTHER) == [False, True, True, True, True]


def test_a_newer_draft_takes_the_place_of_the_older(path: Path) -> None:
    rig = Rig(path, 24)
    rig.guess(LONG, SHORT)
    # What both want is kept while the rest makes room.
    assert rig.guess(OTHER, SHORT) == Prefetched(hot=1, loaded=1, missing=0)
    assert rig.there(SHORT, OTHER) == [True, True]
    assert rig.pool.stats()["leased"] == 2


def test_a_question_gets_the_room_of_leases_the_oldest_first(path: Path) -> None:
    rig = Rig(path, 9)
    for holder, body in enumerate((SHORT, OTHER, FOURTH)):
        rig.guess(body, holder=holder)
        rig.now += 1
    assert rig.pool.spare_pages() == 0
    assert rig.ask(replace(SHORT, head=(1,))) == [None]
    rig.pager.release([rig.pager.add(replace(SHORT, head=(1,)), kv(40))[0]])
    assert rig.there(SHORT, OTHER, FOURTH) == [False, True, True]
    whole = Body((), tuple(range(100, 228)))
    rig.pager.release([rig.pager.add(whole, kv(len(whole.tokens)))[0]])
    assert rig.there(SHORT, OTHER, FOURTH) == [False, False, False]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_leases_give_way_before_anything_that_the_question_wants(path: Path, policy: str) -> None:
    rig = Rig(path, 9, policy)
    rig.ask(SHORT, OTHER)
    rig.guess(FIFTH)
    # All is full. What comes in for one body must not cost the others theirs, which are not pinned yet.
    assert rig.ask(FOURTH, SHORT, OTHER) == [["cold"], ["hot"], ["hot"]]
    assert rig.there(FIFTH) == [False]


def test_a_guess_brings_in_nothing_that_was_given_up_in_the_last_minute(path: Path) -> None:
    rig = Rig(path, 21)
    rig.ask(LONG)
    rig.ask(SHORT)
    # It has taken the place of a block.
    assert rig.guess(LONG) == Prefetched(hot=2, loaded=0, missing=1)
    rig.now += COOL_DOWN_SECONDS
    assert rig.guess(LONG) == Prefetched(hot=2, loaded=1, missing=0)
    rig.ask(SHORT)
    # A question brings it in at once.
    assert rig.ask(LONG) == [["hot", "cold", "hot"]]


def test_what_is_not_stored_whole_is_left_to_be_computed(path: Path) -> None:
    rig = Rig(path, 100)
    rig.store.drop([rig.pager.addresses(LONG)[2].key])
    assert rig.guess(LONG, SHORT) == Prefetched(hot=0, loaded=1, missing=3)


def test_a_damaged_block_is_found_and_told(path: Path) -> None:
    rig = Rig(path, 100)
    whole = Pager(HotPool(SHAPE, 100 * PAGE_BYTES), rig.store, SHAPE, b"model").add(LONG, kv(300))[1]
    rig.store.put([replace(whole[1], data=whole[1].data[:-1] + bytes([whole[1].data[-1] ^ 1]))])
    assert rig.guess(LONG) == Prefetched(hot=0, loaded=1, missing=2)
    assert [block.key for block in rig.pager.take_damaged()] == [whole[1].key]


@pytest.mark.parametrize("looks", range(5))
def test_a_question_stops_a_guess_between_blocks(path: Path, looks: int) -> None:
    rig = Rig(path, 100)
    asked = itertools.count()
    done = rig.guess(LONG, SHORT, interrupted=lambda: next(asked) >= looks)
    # One look before a body, one before each of its blocks.
    loaded = max(0, looks - 1)
    assert done == Prefetched(hot=0, loaded=loaded, missing=4 - loaded)
    assert rig.pool.stats()["leased"] == done.loaded


def test_bodies_that_share_a_block_count_it_once(path: Path) -> None:
    rig = Rig(path, 100)
    assert rig.guess(SHORT, replace(SHORT, vector=None)) == Prefetched(hot=0, loaded=1, missing=0)


def test_nothing_to_guess_ends_the_lease(path: Path) -> None:
    rig = Rig(path, 100)
    rig.guess(SHORT)
    assert rig.guess() == Prefetched(hot=0, loaded=0, missing=0)
    assert rig.pool.stats()["leased"] == 0
