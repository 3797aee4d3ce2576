from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kvd.kv.codec import INT8, encode
from kvd.kv.pager import Body, Fetched, Pager, split_body
from kvd.kv.policies import Semantic
from kvd.kv.pool import PAGE_TOKENS, HotPool, PoolFullError
from kvd.kv.store import BlockStore
from kvd.types import KVShape

SHAPE = KVShape(n_layer=2, width=64)
PAGE_BYTES = PAGE_TOKENS * SHAPE.bytes_per_token
BODY = Body((7, 8), tuple(range(300)))
OTHER = Body((), tuple(range(1000, 1040)))


def a_pager(path: Path, pages: int = 100, whose: bytes = b"model") -> tuple[Pager, HotPool, BlockStore]:
    pool, store = HotPool(SHAPE, pages * PAGE_BYTES), BlockStore(path)
    return Pager(pool, store, SHAPE, whose), pool, store


def kv(tokens: int) -> torch.Tensor:
    return torch.randn((2, 2, tokens, 64), generator=torch.Generator().manual_seed(tokens)).half()


def keys_and_values(pager: Pager, fetched: Fetched) -> torch.Tensor:
    rows = pager.rows([fetched])
    return torch.stack([torch.stack([rows.keys(layer), rows.values(layer)]) for layer in range(2)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.db"


@pytest.mark.parametrize(
    ("length", "parts"), [(1, [1]), (128, [128]), (129, [64, 65]), (300, [100, 100, 100]), (257, [85, 86, 86])]
)
def test_bodies_are_cut_into_equal_blocks(length: int, parts: list[int]) -> None:
    blocks = split_body(tuple(range(length)))
    assert [len(block) for block in blocks] == parts
    assert sum(blocks, ()) == tuple(range(length))


def test_new_hot_and_cold_are_the_same_state(path: Path) -> None:
    pager, _, store = a_pager(path)
    assert pager.fetch([BODY]) == [None]
    new, frames = pager.add(BODY, kv(300))
    store.put(frames)
    (hot,) = pager.fetch([BODY])
    cold_pager, _, _ = a_pager(path)
    (cold,) = cold_pager.fetch([BODY])
    assert hot is not None
    assert cold is not None
    assert (new.count("new", 0), hot.count("hot", 0), cold.count("cold", 0)) == (300, 300, 300)
    assert (new.count("new", 120), hot.count("cold", 0)) == (180, 0)
    states = [keys_and_values(pager, new), keys_and_values(pager, hot), keys_and_values(cold_pager, cold)]
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])
    assert pager.take_used() == {frame.key for frame in frames}
    assert pager.take_used() == set()


def test_another_model_finds_nothing(path: Path) -> None:
    pager, _, store = a_pager(path)
    store.put(pager.add(BODY, kv(300))[1])
    assert a_pager(path, whose=b"another")[0].fetch([BODY]) == [None]


def test_a_body_made_behind_another_head_is_another_body(path: Path) -> None:
    pager, _, store = a_pager(path)
    store.put(pager.add(BODY, kv(300))[1])
    assert pager.fetch([replace(BODY, head=(7, 9))]) == [None]
    assert pager.fetch([BODY]) != [None]


def test_a_body_that_is_faster_computed_is_not_loaded(path: Path) -> None:
    pager, _, store = a_pager(path)
    store.put(pager.add(BODY, kv(300))[1])
    other, _, _ = a_pager(path)
    for tokens in (100, 200, 300):
        other.costs.load.observe(tokens, 1.0 + tokens)
        other.costs.prefill.observe(tokens, 0.5 * tokens)
    assert other.fetch([BODY]) == [None]
    assert other.counts == {"hot_hit": 0, "hot_miss": 3, "cold_declined": 3}
    # What is in the pool already costs nothing to load.
    assert pager.fetch([BODY]) != [None]


def test_lookups_and_loads_are_counted_once_each(path: Path) -> None:
    pager, _, store = a_pager(path)
    pager.fetch([BODY, OTHER])
    assert pager.counts == {"hot_hit": 0, "hot_miss": 4, "cold_hit": 0, "cold_miss": 4}
    frames = pager.add(BODY, kv(300))[1]
    store.put(frames)
    store.drop([frames[2].key])
    pager.fetch([BODY, BODY])
    assert pager.counts["hot_hit"] == 6
    other, _, _ = a_pager(path)
    # Its last block is missing: the body has to be computed, the first two were loaded for nothing.
    assert other.fetch([BODY]) == [None]
    assert other.counts == {"hot_hit": 0, "hot_miss": 3, "cold_hit": 2, "cold_miss": 1, "swapped_in": 2}
    store.put(frames)
    assert other.fetch([BODY]) != [None]
    assert other.counts == {"hot_hit": 2, "hot_miss": 4, "cold_hit": 3, "cold_miss": 1, "swapped_in": 3}


def test_a_question_and_its_bodies_are_told_to_the_policy(path: Path) -> None:
    one, other = np.array([1, 0], np.float32), np.array([0, 1], np.float32)
    pool, store = HotPool(SHAPE, 9 * PAGE_BYTES, policy=Semantic()), BlockStore(path)
    pager = Pager(pool, store, SHAPE, b"model")
    wanted = [
        Body((), tuple(range(start, start + 40)), vector) for start, vector in ((0, one), (100, other), (200, one))
    ]
    for body in wanted:
        pager.fetch([body], body.vector)
        pager.release([pager.add(body, kv(40))[0]])
    pager.fetch([Body((), (1,), one)], one)
    pager.release([pager.add(Body((), (1,), one), kv(1))[0]])
    # The second one is the least like what was asked.
    assert [pager.addresses(body)[0].key in pool for body in wanted] == [True, False, True]


def test_a_body_of_which_a_part_was_given_up_is_loaded_although_the_pool_is_full(path: Path) -> None:
    pager, pool, store = a_pager(path, pages=21)
    for body in (BODY, OTHER):
        fetched, frames = pager.add(body, kv(len(body.tokens)))
        pager.release([fetched])
        store.put(frames)
    # OTHER has taken the place of BODY's first block; its second and third must not leave for the first.
    assert [link.key in pool for link in pager.addresses(BODY)] == [False, True, True]
    (found,) = pager.fetch([BODY])
    assert found is not None
    assert found.tiers == ["cold", "hot", "hot"]


def test_addresses_are_the_same_in_every_process() -> None:
    program = (
        "from kvd.kv.pager import Body, Pager; from kvd.types import KVShape;"
        "print(Pager(None, None, KVShape(2, 64), b'model').addresses(Body((7,), tuple(range(300))))[-1].key.hex())"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    first, second = (process.communicate()[0] for process in processes)
    assert first == second != ""


@pytest.mark.parametrize("pages", [10, 22])
def test_a_full_pool_leaves_nothing_pinned(path: Path, pages: int) -> None:
    pager, _, store = a_pager(path)
    for body in (BODY, OTHER):
        store.put(pager.add(body, kv(len(body.tokens)))[1])
    # 10 pages hold a part of the first body, 22 all of it and nothing of the second.
    small, pool, _ = a_pager(path, pages)
    with pytest.raises(PoolFullError):
        small.fetch([BODY, OTHER])
    pool.put(b"whole", range(pages * PAGE_TOKENS), kv(pages * PAGE_TOKENS))
    pool.check_integrity()


def test_a_body_that_does_not_fit_leaves_nothing_pinned(path: Path) -> None:
    pager, pool, _ = a_pager(path, pages=10)
    with pytest.raises(PoolFullError):
        pager.add(BODY, kv(300))
    pool.put(b"whole", range(10 * PAGE_TOKENS), kv(10 * PAGE_TOKENS))
    pool.check_integrity()


def test_a_frame_of_another_codec_is_damage(path: Path) -> None:
    pager, _, store = a_pager(path)
    fetched, frames = pager.add(BODY, kv(len(BODY.tokens)))
    pager.release([fetched])
    other = encode(BODY.tokens[: frames[0].tokens], kv(len(BODY.tokens))[:, :, : frames[0].tokens], INT8)
    store.put([replace(frames[0], data=other), *frames[1:]])
    again = a_pager(path)[0]
    assert again.fetch([BODY]) == [None]
    assert [(damaged.key, damaged.reason) for damaged in again.take_damaged()] == [
        (frames[0].key, "frame of another codec")
    ]
