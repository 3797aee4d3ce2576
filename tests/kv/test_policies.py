from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvd.errors import UsageError
from kvd.kv.bodies import Vector
from kvd.kv.guesses import COOL_DOWN_SECONDS
from kvd.kv.policies import POLICIES, Combined, LeastRecentlyUsed, Policy, Semantic, policy_named
from kvd.kv.pool import PAGE_TOKENS, HotPool, PoolFullError, Resident
from kvd.types import KVShape

SHAPE = KVShape(n_layer=1, width=1)
PAGE_BYTES = PAGE_TOKENS * SHAPE.bytes_per_token
KV = torch.zeros((1, 2, 200, 1), dtype=torch.float16)
ONE, OTHER = np.array([1, 0], np.float32), np.array([0, 1], np.float32)


def a_pool(policy: Policy, pages: int) -> HotPool:
    return HotPool(SHAPE, pages * PAGE_BYTES, policy=policy)


def ask(pool: HotPool, *bodies: str, question: Vector | None = None, chunk: Vector | None = None) -> None:
    """A question that wants bodies of as many one-page blocks as their names have letters."""
    chains = [[f"{body}{index}".encode() for index in range(len(body))] for body in bodies]
    pool.policy.asked(question)
    for chain in chains:
        pool.policy.wanted(chain, chunk)
    for key in itertools.chain(*chains):
        if pool.get(key, [1]) is None:
            pool.put(key, [1], KV[:, :, :1])


def held(pool: HotPool) -> str:
    """Names of the blocks in the pool."""
    return " ".join(sorted(key.decode() for key in pool.policy.victims()))


def test_least_recently_used_goes_by_blocks_from_the_oldest_on() -> None:
    pool = a_pool(LeastRecentlyUsed(), 4)
    ask(pool, "xx")
    ask(pool, "y")
    ask(pool, "zz")
    assert held(pool) == "xx1 y0 zz0 zz1"
    assert [key.decode() for key in pool.policy.victims()] == ["xx1", "y0", "zz0", "zz1"]


def test_semantic_gives_up_what_is_least_like_the_recent_questions() -> None:
    pool = a_pool(Semantic(), 3)
    ask(pool, "a", question=ONE, chunk=ONE)
    ask(pool, "b", question=OTHER, chunk=OTHER)
    # Older than b, but the recent questions are about it.
    ask(pool, "c", question=ONE, chunk=ONE)
    ask(pool, "d", question=ONE, chunk=ONE)
    assert held(pool) == "a0 c0 d0"


def test_semantic_without_vectors_gives_up_what_was_wanted_longest_ago() -> None:
    pool = a_pool(Semantic(), 2)
    for body in "abca":
        ask(pool, body)
    assert held(pool) == "a0 c0"


def test_vectors_of_another_length_replace_those_before() -> None:
    pool = a_pool(Semantic(), 2)
    ask(pool, "a", question=ONE, chunk=ONE)
    ask(pool, "b", question=np.array([1, 0, 0], np.float32), chunk=np.array([1, 0, 0], np.float32))
    ask(pool, "c", question=np.array([1, 0, 0], np.float32), chunk=np.array([1, 0, 0], np.float32))
    assert held(pool) == "b0 c0"


@pytest.mark.parametrize("policy", [Semantic, Combined])
def test_a_body_is_given_up_from_its_end_and_before_another_is_touched(policy: type[Policy]) -> None:
    pool = a_pool(policy(), 7)
    ask(pool, "aaaa")
    ask(pool, "bbb")
    ask(pool, "cc")
    assert held(pool) == "aaaa0 aaaa1 bbb0 bbb1 bbb2 cc0 cc1"
    ask(pool, "ddd")
    assert held(pool) == "bbb0 bbb1 cc0 cc1 ddd0 ddd1 ddd2"


@pytest.mark.parametrize("policy", [Semantic, Combined])
def test_what_a_question_wants_does_not_make_room_for_the_rest_of_it(policy: type[Policy]) -> None:
    pool = a_pool(policy(), 3)
    ask(pool, "a", question=ONE, chunk=OTHER)
    ask(pool, "bb", question=ONE, chunk=ONE)
    ask(pool, "d", "a", question=ONE, chunk=OTHER)
    assert held(pool) == "a0 bb0 d0"


def test_combined_keeps_what_is_wanted_again_and_again() -> None:
    pool = a_pool(Combined(), 3)
    for body in "aaaabcd":
        ask(pool, body)
    assert held(pool) == "a0 c0 d0"


def test_combined_lets_go_in_the_end_of_what_was_wanted_often_once() -> None:
    pool = a_pool(Combined(), 8)
    for _ in range(4):
        ask(pool, "a")
    for number in range(5000):
        ask(pool, chr(0x4E00 + number))
    assert "a0" not in held(pool).split()


def test_combined_remembers_what_left() -> None:
    pool = a_pool(Combined(), 2)
    for body in ["a"] * 4 + ["bb"] + ["a"]:
        ask(pool, body)
    # `a` was out of the pool in between; its four earlier uses count all the same.
    ask(pool, "c")
    ask(pool, "d")
    assert held(pool) == "a0 d0"


def test_combined_prefers_what_is_near_to_the_questions() -> None:
    pool = a_pool(Combined(), 3)
    ask(pool, "a", question=ONE, chunk=ONE)
    ask(pool, "b", question=OTHER, chunk=OTHER)
    ask(pool, "c", question=ONE, chunk=ONE)
    ask(pool, "d", question=ONE, chunk=ONE)
    assert held(pool) == "a0 c0 d0"


def test_blocks_that_bodies_share_leave_with_the_one_that_wanted_them_last() -> None:
    pool = a_pool(Combined(), 4)
    for chain in ([b"s", b"x"], [b"s", b"y"]):
        pool.policy.asked(None)
        pool.policy.wanted(chain, None)
        for key in chain:
            if pool.get(key, [1]) is None:
                pool.put(key, [1], KV[:, :, :1])
    assert list(pool.policy.victims()) == [b"x", b"y", b"s"]
    pool.check_integrity()


def test_a_block_of_a_known_body_that_comes_alone_leaves_its_chain_whole() -> None:
    pool = a_pool(Combined(), 4)
    ask(pool, "aaa")
    pool.discard(b"aaa2")
    pool.policy.asked(None)
    pool.put(b"aaa2", [1], KV[:, :, :1])
    assert list(pool.policy.victims()) == [b"aaa2", b"aaa1", b"aaa0"]


@pytest.mark.parametrize("policy", [Semantic, Combined])
def test_what_left_long_ago_is_forgotten(policy: type[Policy]) -> None:
    pool = a_pool(policy(), 2)
    for number in range(20_000):
        ask(pool, chr(0x4E00 + number), question=ONE, chunk=ONE)
    pool.check_integrity()
    assert isinstance(pool.policy, Semantic | Combined)
    assert len(pool.policy._bodies.last) <= 4096


def test_pinned_blocks_stay_whatever_the_policy_says() -> None:
    for name in POLICIES:
        pool = a_pool(policy_named(name), 2)
        ask(pool, "a")
        block = pool.get(b"a0", [1])
        assert block is not None
        pool.pin([block])
        ask(pool, "b")
        ask(pool, "c")
        assert held(pool) == "a0 c0"
        with pytest.raises(PoolFullError):
            pool.put(b"large", range(2 * PAGE_TOKENS), KV[:, :, : 2 * PAGE_TOKENS])
        # Nothing left for what could not come.
        assert held(pool) == "a0 c0"


def test_an_unknown_policy_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no eviction policy 'clock'"):
        policy_named("clock")


def test_what_was_evicted_cools_down_for_a_minute() -> None:
    now = [100.0]
    pool = HotPool(SHAPE, 2 * PAGE_BYTES, clock=lambda: now[0])
    ask(pool, "a")
    ask(pool, "b")
    assert b"a0" not in pool.cooling_down
    ask(pool, "c")
    now[0] += COOL_DOWN_SECONDS - 1
    assert b"a0" in pool.cooling_down
    # What a question wants comes in all the same.
    ask(pool, "a")
    assert held(pool) == "a0 c0"
    now[0] += 1
    assert b"a0" not in pool.cooling_down
    assert b"b0" in pool.cooling_down


def guess(pool: HotPool, body: str, chunk: Vector | None = None) -> None:
    """Bring in a body that no question has wanted yet."""
    chain = [f"{body}{index}".encode() for index in range(len(body))]
    pool.policy.expected(chain, chunk)
    for key in chain:
        if key not in pool:
            pool.put(key, [1], KV[:, :, :1])


@pytest.mark.parametrize("policy", [Semantic, Combined])
def test_what_a_guess_brought_in_leaves_before_what_the_last_question_wants(policy: type[Policy]) -> None:
    pool = a_pool(policy(), 4)
    ask(pool, "a", question=ONE, chunk=OTHER)
    guess(pool, "bb", ONE)
    guess(pool, "c", ONE)
    guess(pool, "d", ONE)
    assert held(pool) == "a0 bb0 c0 d0"
    pool.check_integrity()


def test_guesses_do_not_add_to_what_questions_want_often() -> None:
    pools = [a_pool(Combined(), 3) for _ in range(2)]
    for pool, guesses in zip(pools, (0, 9), strict=True):
        for body in "ababcb":
            ask(pool, body)
        for _ in range(guesses):
            guess(pool, "c")
        ask(pool, "d")
    # Wanted once, whatever was guessed of it.
    assert [held(pool) for pool in pools] == ["a0 b0 d0"] * 2


def test_what_only_a_guess_wanted_is_forgotten_like_what_left() -> None:
    pool = a_pool(Combined(), 2)
    for number in range(20_000):
        guess(pool, chr(0x4E00 + number), ONE)
    pool.check_integrity()
    assert isinstance(pool.policy, Combined)
    assert len(pool.policy._bodies.last) <= 4096


class PolicyMachine(RuleBasedStateMachine):
    """Random questions, guesses, pins, evictions and discards under each policy, against the pool's own tables."""

    @initialize(name=st.sampled_from(sorted(POLICIES)), pages=st.integers(4, 12))
    def start(self, name: str, pages: int) -> None:
        self.pool = a_pool(policy_named(name), pages)
        self.pinned: list[tuple[bytes, Resident]] = []

    @rule(
        bodies=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), max_size=3),
        angle=st.none() | st.floats(0, 6),
        tokens=st.integers(1, 40),
    )
    def ask(self, bodies: list[tuple[int, int]], angle: float | None, tokens: int) -> None:
        vector = None if angle is None else np.array([np.cos(angle), np.sin(angle)], np.float32)
        self.pool.policy.asked(vector)
        # Bodies of one number share their first blocks.
        chains = [[bytes([number, index]) for index in range(length)] for number, length in bodies]
        for chain in chains:
            self.pool.policy.wanted(chain, vector)
        for key in itertools.chain(*chains):
            if self.pool.get(key, range(tokens)) is None:
                self.put(key, tokens)

    @rule(
        body=st.tuples(st.integers(0, 9), st.integers(1, 3)),
        angle=st.none() | st.floats(0, 6),
        tokens=st.integers(1, 40),
        stop=st.integers(0, 3),
    )
    def guess(self, body: tuple[int, int], angle: float | None, tokens: int, stop: int) -> None:
        """A draft of a question: what is missing of a body comes in, perhaps not to its end."""
        vector = None if angle is None else np.array([np.cos(angle), np.sin(angle)], np.float32)
        chain = [bytes([body[0], index]) for index in range(body[1])]
        self.pool.policy.expected(chain, vector)
        for key in [key for key in chain if key not in self.pool][:stop]:
            self.put(key, tokens)
            self.pool.lease(body[0] % 2, chain)

    @rule(number=st.integers(0, 9), index=st.integers(0, 2), tokens=st.integers(1, 40))
    def put_alone(self, number: int, index: int, tokens: int) -> None:
        self.put(bytes([number, index]), tokens)

    def put(self, key: bytes, tokens: int) -> None:
        before = set(self.pool.policy.victims())
        pinned = {name for name, _ in self.pinned}
        try:
            self.pool.put(key, range(tokens), KV[:, :, :tokens])
        except ValueError:
            assert key in pinned
        except PoolFullError:
            assert pinned
            assert set(self.pool.policy.victims()) == before - {key}
        else:
            assert key in self.pool
        assert all(name in self.pool for name in pinned)

    @rule(place=st.integers(0, 11))
    def pin(self, place: int) -> None:
        for key in list(self.pool.policy.victims())[place : place + 1]:
            block = self.pool._blocks[key]
            self.pool.pin([block])
            self.pinned.append((key, block))

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        self.pool.unpin([self.pinned.pop()[1]])

    @rule()
    def discard(self) -> None:
        pinned = {name for name, _ in self.pinned}
        for key in [key for key in self.pool.policy.victims() if key not in pinned][:1]:
            self.pool.discard(key)

    @invariant()
    def intact(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check_integrity()


TestPolicyMachine = PolicyMachine.TestCase
TestPolicyMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
