from __future__ import annotations

import inspect
import sys
import types

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvd.errors import UsageError
from kvd.kv.guesses import LEASE_SECONDS
from kvd.kv.integrity import IntegrityError
from kvd.kv.pool import PAGE_TOKENS, HotPool, PoolFullError, Resident, pages_for, pool_bytes_for
from kvd.types import KVShape

SHAPE = KVShape(n_layer=2, width=4)
PAGE_BYTES = PAGE_TOKENS * SHAPE.bytes_per_token


def content(tokens: int, seed: int) -> torch.Tensor:
    return torch.randn((2, 2, tokens, 4), generator=torch.Generator().manual_seed(seed)).half()


def read(pool: HotPool, block: Resident) -> torch.Tensor:
    rows = pool.rows([block])
    return torch.stack([torch.stack([rows.keys(layer), rows.values(layer)]) for layer in range(2)])


def test_gives_back_what_was_put_in_across_pages() -> None:
    pool = HotPool(SHAPE, 10 * PAGE_BYTES)
    kv = content(PAGE_TOKENS * 2 + 3, 1)
    block = pool.put(b"a", range(kv.shape[2]), kv)
    assert len(block.pages) == 3
    assert torch.equal(read(pool, block), kv)


def test_runs_follow_one_another() -> None:
    pool = HotPool(SHAPE, 10 * PAGE_BYTES)
    first, second = pool.put(b"a", range(20), content(20, 1)), pool.put(b"b", range(7), content(7, 2))
    rows = pool.rows([first, second, first])
    expected = torch.cat([content(20, 1)[1, 0], content(7, 2)[1, 0], content(20, 1)[1, 0]])
    assert torch.equal(rows.keys(1), expected)


def test_other_tokens_under_a_key_are_no_hit() -> None:
    pool = HotPool(SHAPE, 10 * PAGE_BYTES)
    pool.put(b"a", [1, 2, 3], content(3, 1))
    assert pool.get(b"a", [1, 2, 4]) is None
    assert pool.get(b"a", [1, 2, 3]) is not None


def test_least_recently_used_leaves_first_and_pinned_never() -> None:
    pool = HotPool(SHAPE, 3 * PAGE_BYTES)
    blocks = {key: pool.put(key, [1], content(1, 1)) for key in (b"a", b"b", b"c")}
    pool.get(b"a", [1])
    pool.pin([blocks[b"b"]])
    pool.put(b"d", [1], content(1, 1))
    assert [key for key in (b"a", b"b", b"c", b"d") if key in pool] == [b"a", b"b", b"d"]
    pool.put(b"e", [1], content(1, 1))
    assert [key for key in (b"a", b"b", b"d", b"e") if key in pool] == [b"b", b"d", b"e"]
    assert pool.stats()["evictions"] == 2
    with pytest.raises(PoolFullError):
        pool.put(b"f", range(3 * PAGE_TOKENS), content(3 * PAGE_TOKENS, 1))
    pool.check_integrity()


def test_unpinning_twice_is_an_error() -> None:
    pool = HotPool(SHAPE, 3 * PAGE_BYTES)
    block = pool.put(b"a", [1], content(1, 1))
    pool.pin([block])
    pool.unpin([block])
    with pytest.raises(ValueError, match="not pinned"):
        pool.unpin([block])


def test_a_cap_that_holds_no_full_context_is_refused_with_the_least_that_does() -> None:
    with pytest.raises(UsageError) as caught:
        pool_bytes_for(SHAPE, 4096, 1000)
    least = int(caught.value.hint.split("at least ")[1].split()[0])
    assert pool_bytes_for(SHAPE, 4096, least) == least
    assert least >= 4096 * SHAPE.bytes_per_token


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def a_full_pool(keys: str, clock: Clock) -> HotPool:
    """One block of one page at each key, and no page free."""
    pool = HotPool(SHAPE, len(keys) * PAGE_BYTES, clock=clock)
    for key in keys:
        pool.put(key.encode(), [1], content(1, 1))
    return pool


def held(pool: HotPool) -> str:
    return b"".join(sorted(pool.policy.victims())).decode()


def test_what_is_leased_stays_until_its_time_is_over() -> None:
    clock = Clock()
    pool = a_full_pool("abc", clock)
    pool.lease("one", [b"a", b"b", b"never there"])
    assert pool.stats()["leased"] == 2
    assert pool.spare_pages() == 1
    clock.now += LEASE_SECONDS - 1
    pool.put(b"d", [1], content(1, 1))
    assert held(pool) == "abd"
    clock.now += 1
    assert pool.stats()["leased"] == 0
    assert pool.spare_pages() == 3
    pool.put(b"e", [1], content(1, 1))
    assert held(pool) == "bde"


def test_a_lease_takes_the_place_of_its_holders_last_one() -> None:
    clock = Clock()
    pool = a_full_pool("abc", clock)
    pool.lease("one", [b"a", b"b"])
    pool.lease("two", [b"b"])
    pool.lease("one", [b"c"])
    assert pool.spare_pages() == 1
    pool.put(b"d", [1], content(1, 1))
    assert held(pool) == "bcd"
    for holder in ("one", "two", "three"):
        pool.lease(holder, [])
    assert pool.stats()["leased"] == 0


def test_leases_give_way_the_oldest_first_where_there_is_no_other_room() -> None:
    clock = Clock()
    pool = a_full_pool("abcdef", clock)
    # Newest: what is in an older lease too is as safe as in the newest one.
    for holder, keys in (("one", "cb"), ("two", "a"), ("three", "bd")):
        pool.lease(holder, [key.encode() for key in keys])
    for key, expected in (("u", "abcdfu"), ("v", "abcduv")):
        pool.put(key.encode(), [1], content(1, 1))
        assert held(pool) == expected
    assert pool.evictions == 2
    pinned = [block for key in (b"u", b"v") if (block := pool.get(key, [1]))]
    pool.pin(pinned)
    for key, expected in (("w", "abduvw"), ("x", "abduvx")):
        pool.put(key.encode(), [1], content(1, 1))
        assert held(pool) == expected
    pool.put(b"y", range(2 * PAGE_TOKENS), content(2 * PAGE_TOKENS, 1))
    assert held(pool) == "bduvy"
    pool.put(b"z", range(4 * PAGE_TOKENS), content(4 * PAGE_TOKENS, 1))
    assert held(pool) == "uvz"
    pool.check_integrity()


def test_a_request_larger_than_the_pool_breaks_no_lease() -> None:
    pool = a_full_pool("ab", Clock())
    pool.lease("one", [b"a", b"b"])
    with pytest.raises(PoolFullError):
        pool.put(b"c", range(3 * PAGE_TOKENS), content(3 * PAGE_TOKENS, 1))
    assert pool.stats()["leased"] == 2


def test_a_broken_pool_is_found_also_without_asserts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the pool as `python -O` compiles it."""
    optimized = types.ModuleType("optimized_pool")
    monkeypatch.setitem(sys.modules, optimized.__name__, optimized)
    source = inspect.getsource(sys.modules[HotPool.__module__])
    exec(compile(source, "pool.py", "exec", optimize=1), optimized.__dict__)
    pool = optimized.HotPool(SHAPE, 2 * PAGE_BYTES)
    for key in (b"a", b"b"):
        pool.put(key, [1], content(1, 1))
    pool.lease("one", [b"a"])
    pool.check_integrity()
    pool._leases._held["one"].keys.add(b"gone")
    with pytest.raises(IntegrityError, match="a lease on a block that is gone"):
        pool.check_integrity()
    pool.lease("one", [])
    pool.check_integrity()
    pool._free.append(0)
    with pytest.raises(IntegrityError, match="a page is lost or held twice"):
        pool.check_integrity()


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])


class PoolMachine(RuleBasedStateMachine):
    """Random puts, gets, pins, leases and evictions against plain dictionaries of what each key and lease must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.pool = HotPool(SHAPE, 8 * PAGE_BYTES, clock=self.clock)
        self.held: dict[bytes, torch.Tensor] = {}
        self.pinned: list[Resident] = []
        self.leases: dict[int, tuple[set[bytes], float]] = {}

    @rule(key=KEYS, tokens=st.integers(1, 70), seed=st.integers(0, 9))
    def put(self, key: bytes, tokens: int, seed: int) -> None:
        kv = content(tokens, seed)
        ages = self.ages()
        ages.pop(key, None)
        before, spare = set(self.pool.policy.victims()) - {key}, self.pool.spare_pages()
        replaced = key in self.pool and not self.pool._blocks[key].pins
        spare += len(self.pool._blocks[key].pages) if replaced and key in self.ages() else 0
        try:
            self.pool.put(key, range(tokens), kv)
        except (PoolFullError, ValueError):
            # Full of pinned blocks, or the key itself is pinned.
            assert self.pinned
            assert before <= set(self.pool.policy.victims())
            if key not in self.pool:
                self.held.pop(key, None)
        else:
            self.held[key] = kv
            gone = before - set(self.pool.policy.victims())
            newest = max((ages.get(other, -1) for other in gone), default=-1)
            # Nobody's lease is broken while there is other room, nor a newer one while there is an older.
            assert newest < 0 or pages_for(tokens) > spare
            stayed = {other for other in before - gone if not self.pool._blocks[other].pins}
            assert not gone or all(ages.get(other, -1) >= newest for other in stayed)
        for keys, _ in self.leases.values():
            keys &= set(self.pool.policy.victims()) - ({key} if replaced else set())

    def ages(self) -> dict[bytes, int]:
        """The place of the newest lease on each leased key, from the oldest on."""
        running = [keys for keys, ends in self.leases.values() if ends > self.clock.now]
        return {key: age for age, keys in enumerate(running) for key in keys}

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        kv = self.held.get(key)
        block = self.pool.get(key, range(kv.shape[2] if kv is not None else 1))
        if block is not None:
            assert kv is not None
            assert torch.equal(read(self.pool, block), kv)
            self.pool.pin([block])
            self.pinned.append(block)

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        self.pool.unpin([self.pinned.pop()])

    @rule(holder=st.integers(0, 2), keys=st.sets(KEYS), seconds=st.integers(1, 5))
    def lease(self, holder: int, keys: set[bytes], seconds: int) -> None:
        self.pool.lease(holder, keys, seconds)
        self.leases.pop(holder, None)
        self.leases[holder] = ({key for key in keys if key in self.pool}, self.clock.now + seconds)

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @invariant()
    def intact(self) -> None:
        self.pool.check_integrity()
        stats = self.pool.stats()
        assert stats["used_bytes"] <= stats["bytes"] == 8 * PAGE_BYTES
        assert stats["leased"] == len(self.ages())
        loose = [block for key, block in self.pool._blocks.items() if not block.pins and key not in self.ages()]
        assert self.pool.spare_pages() == 8 - sum(
            len(block.pages) for block in self.pool.blocks() if block not in loose
        )


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
