from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvd.errors import UsageError
from kvd.kv.pool import PAGE_TOKENS, HotPool, PoolFullError, Resident, pool_bytes_for
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


class PoolMachine(RuleBasedStateMachine):
    """Random puts, gets, pins and evictions against a plain dictionary of what each key must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = HotPool(SHAPE, 8 * PAGE_BYTES)
        self.held: dict[bytes, torch.Tensor] = {}
        self.pinned: list[Resident] = []

    @rule(key=st.sampled_from([b"a", b"b", b"c", b"d", b"e"]), tokens=st.integers(1, 70), seed=st.integers(0, 9))
    def put(self, key: bytes, tokens: int, seed: int) -> None:
        kv = content(tokens, seed)
        try:
            self.pool.put(key, range(tokens), kv)
        except (PoolFullError, ValueError):
            # Full of pinned blocks, or the key itself is pinned.
            assert self.pinned
            if key not in self.pool:
                self.held.pop(key, None)
        else:
            self.held[key] = kv

    @rule(key=st.sampled_from([b"a", b"b", b"c", b"d", b"e"]))
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

    @invariant()
    def intact(self) -> None:
        self.pool.check_integrity()
        assert self.pool.stats()["used_bytes"] <= self.pool.stats()["bytes"] == 8 * PAGE_BYTES


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
