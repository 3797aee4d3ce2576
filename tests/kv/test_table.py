from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvd.kv.codec import BLOCK_TOKENS
from kvd.kv.pager import Pager
from kvd.kv.pool import PAGE_TOKENS, HotPool, PoolFullError
from kvd.kv.store import BlockStore
from kvd.kv.table import BlockTable
from kvd.types import KVShape

SHAPE = KVShape(n_layer=2, width=64)
PAGE_BYTES = PAGE_TOKENS * SHAPE.bytes_per_token


def a_pager(pages: int) -> Pager:
    return Pager(HotPool(SHAPE, pages * PAGE_BYTES), BlockStore(Path("/nowhere/kv.db"), readonly=True), SHAPE, b"model")


def kv(tokens: list[int]) -> torch.Tensor:
    """KV that tells tokens apart."""
    base = torch.linspace(-1, 1, SHAPE.width)
    return torch.stack([base * (1 + token % 97) for token in tokens]).half().expand(2, 2, -1, -1)


def state(table: BlockTable) -> torch.Tensor:
    rows = table.rows()
    return torch.stack([torch.stack([rows.keys(layer), rows.values(layer)]) for layer in range(2)])


def test_a_tail_is_kept_as_computed_and_a_full_block_goes_through_the_codec() -> None:
    pager = a_pager(40)
    table = BlockTable(pager)
    first = list(range(BLOCK_TOKENS + 5))
    frames = table.append(first, kv(first))
    assert [frame.tokens for frame in frames] == [BLOCK_TOKENS]
    assert table.tokens == tuple(first)
    kept = state(table)
    assert torch.equal(kept[:, :, BLOCK_TOKENS:], kv(first)[:, :, BLOCK_TOKENS:])
    assert torch.allclose(kept, kv(first), rtol=0.2, atol=10)
    # What came later changes nothing of what was written.
    assert table.append([7], kv([7])) == []
    assert torch.equal(state(table)[:, :, :-1], kept)


def test_a_fork_that_goes_on_gets_a_tail_of_its_own() -> None:
    pager = a_pager(40)
    table = BlockTable(pager)
    past = list(range(150))
    table.append(past, kv(past))
    before = state(table)
    used = pager.pool.stats()["used_bytes"]
    other = table.fork()
    assert pager.pool.stats()["used_bytes"] == used
    other.append([1, 2, 3], kv([1, 2, 3]))
    assert torch.equal(state(table), before)
    # Copied was the tail: two pages, into which the new tokens fit.
    assert pager.pool.stats()["used_bytes"] == used + 2 * PAGE_BYTES
    table.append([9], kv([9]))
    assert other.tokens == (*past, 1, 2, 3)
    assert torch.equal(state(other)[:, :, -3:], kv([1, 2, 3]))
    for item in (table, other):
        item.close()
    pager.pool.check_integrity()
    assert pager.pool.stats()["tokens"] == BLOCK_TOKENS


def test_sequences_that_say_the_same_hold_one_copy() -> None:
    pager = a_pager(40)
    tables = [BlockTable(pager, head=(5,)) for _ in range(3)]
    same = list(range(BLOCK_TOKENS))
    for table in tables:
        table.append(same, kv(same))
    assert pager.pool.stats()["tokens"] == BLOCK_TOKENS
    elsewhere = BlockTable(pager, head=(6,))
    elsewhere.append(same, kv(same))
    assert pager.pool.stats()["tokens"] == 2 * BLOCK_TOKENS


def test_a_hundred_conversations_over_one_past_cost_their_own_words() -> None:
    past, own = list(range(1000)), list(range(40))
    pager = a_pager(1000)
    table = BlockTable(pager)
    table.append(past, kv(past))
    conversations = [table.fork() for _ in range(100)]
    for number, conversation in enumerate(conversations):
        words = [token + number for token in own]
        conversation.append(words, kv(words))
    shared = pager.pool.stats()["used_bytes"]
    unshared = 100 * -(-(1000 + len(own)) // PAGE_TOKENS) * PAGE_BYTES
    # 7 whole blocks once; the tail of 104 tokens and the own 40 for each, full blocks of 128 and a rest.
    assert shared == (7 * 8 + 7 + 100 * (8 + 1)) * PAGE_BYTES
    assert unshared / shared > 6


def test_a_full_pool_is_said_and_nothing_is_lost() -> None:
    pager = a_pager(10)
    table = BlockTable(pager)
    words = list(range(100))
    table.append(words, kv(words))
    other = table.fork()
    with pytest.raises(PoolFullError):
        other.append([1], kv([1]))
    assert other.tokens == table.tokens == tuple(words)
    pager.pool.check_integrity()
    table.close()
    other.append([1], kv([1]))
    assert other.tokens == (*words, 1)
    pager.pool.check_integrity()


class Sequences(RuleBasedStateMachine):
    """Sequences that grow, fork and end in a small pool, against plain lists of tokens."""

    @initialize()
    def begin(self) -> None:
        self.pager = a_pager(40)
        self.said: list[tuple[BlockTable, list[int]]] = []

    @rule(head=st.integers(0, 1))
    def open(self, head: int) -> None:
        self.said.append((BlockTable(self.pager, (head,)), []))

    @precondition(lambda self: self.said)
    @rule(which=st.integers(0, 20), count=st.integers(1, 150), seed=st.integers(0, 2))
    def append(self, which: int, count: int, seed: int) -> None:
        table, tokens = self.said[which % len(self.said)]
        words = [seed + token for token in range(count)]
        try:
            table.append(words, kv(words))
        except PoolFullError:
            words = words[: len(table.tokens) - len(tokens)]
        tokens.extend(words)

    @precondition(lambda self: self.said)
    @rule(which=st.integers(0, 20))
    def fork(self, which: int) -> None:
        table, tokens = self.said[which % len(self.said)]
        self.said.append((table.fork(), list(tokens)))

    @precondition(lambda self: self.said)
    @rule(which=st.integers(0, 20))
    def close(self, which: int) -> None:
        table, _ = self.said.pop(which % len(self.said))
        table.close()

    @invariant()
    def each_says_its_own(self) -> None:
        self.pager.pool.check_integrity()
        for table, tokens in self.said:
            assert table.tokens == tuple(tokens)
            if tokens:
                rest = len(tokens) % BLOCK_TOKENS
                assert torch.equal(state(table)[:, :, len(tokens) - rest :], kv(tokens)[:, :, len(tokens) - rest :])

    def teardown(self) -> None:
        for table, _ in self.said:
            table.close()
        assert all(block.pins == 0 for block in self.pager.pool.blocks())


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
