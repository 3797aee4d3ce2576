from __future__ import annotations

from pathlib import Path

import pytest

from kvd.errors import StoreError
from kvd.kv.eviction import HALF_LIFE
from kvd.kv.store import BlockStore, StoredBlock

CAP = 2_000_000
SIZE = 50_000
OURS, OTHERS, THIRD = b"a" * 32, b"b" * 32, b"c" * 32


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def key(name: str) -> bytes:
    return name.encode().ljust(32, b"-")


def body(name: str, blocks: int = 1, size: int = SIZE, tokens: int = 100, whose: bytes = OURS) -> list[StoredBlock]:
    """A chain `name.0`, `name.1`, ..."""
    names = [f"{name}.{index}" for index in range(blocks)]
    parents = [key(f"head of {name}"), *map(key, names)]
    return [
        StoredBlock(key(one), parent, whose, tokens, one.encode()[:1] * size)
        for one, parent in zip(names, parents, strict=False)
    ]


class Shelf:
    """A store with a clock of its own, asked by names."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock, self.filled = path, Clock(), 0
        self.store = BlockStore(path, clock=self.clock)

    def reopen(self) -> None:
        self.store.close()
        self.store = BlockStore(self.path, clock=self.clock)

    def put(self, *names: str, whose: bytes = OURS, blocks: int = 1) -> None:
        for name in names:
            self.store.put(body(name, blocks, whose=whose), CAP)

    def fill(self, count: int = 60) -> None:
        """Put so many more bodies; some 28 fit."""
        self.put(*(f"new{self.filled + number}" for number in range(count)))
        self.filled += count

    def touch(self, *names: str) -> None:
        self.store.touch([key(name) for name in names])

    def has(self, *names: str, whose: bytes = OURS) -> list[str]:
        found = self.store.get([key(name) for name in names], whose)
        return [name for name in names if key(name) in found]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "kv.db")


def test_what_was_used_least_recently_leaves(shelf: Shelf) -> None:
    shelf.fill()
    names = [f"new{number}.0" for number in range(60)]
    left = shelf.has(*names)
    assert 20 <= len(left) <= 35
    assert left == names[-len(left) :]


def test_what_is_used_often_outlasts_what_is_new(shelf: Shelf) -> None:
    shelf.put("popular", "once")
    for _ in range(5):
        shelf.touch("popular.0")
    shelf.fill()
    assert shelf.has("popular.0", "once.0") == ["popular.0"]


def test_what_was_popular_long_ago_leaves(shelf: Shelf) -> None:
    shelf.put("popular")
    for _ in range(30):
        shelf.touch("popular.0")
    # Thirty uses of a week ago are worth fifteen, of five weeks ago less than one.
    shelf.clock.now += HALF_LIFE
    shelf.fill()
    assert shelf.has("popular.0")
    shelf.clock.now += 4 * HALF_LIFE
    shelf.put(*(f"later{number}" for number in range(40)))
    assert not shelf.has("popular.0")


def test_uses_of_long_ago_count_little_when_it_is_used_again(shelf: Shelf) -> None:
    shelf.put("popular")
    for _ in range(30):
        shelf.touch("popular.0")
    shelf.clock.now += 8 * HALF_LIFE
    shelf.put("now")
    for _ in range(3):
        shelf.touch("now.0")
    shelf.touch("popular.0")
    shelf.clock.now += HALF_LIFE
    shelf.fill()
    assert shelf.has("popular.0", "now.0") == ["now.0"]


def test_what_costs_more_by_byte_stays_longer(shelf: Shelf) -> None:
    dear, cheap = body("dear", tokens=400), body("cheap", tokens=100)
    shelf.store.put([*cheap, *dear], CAP)
    shelf.fill()
    assert shelf.has("dear.0", "cheap.0") == ["dear.0"]


def test_of_two_models_in_use_the_slower_ones_blocks_stay_longer(shelf: Shelf) -> None:
    """Both were used since the store was opened; a token of the large one takes ten times as long."""

    def timed(name: str, whose: bytes, seconds: float) -> StoredBlock:
        (block,) = body(name, whose=whose)
        return StoredBlock(block.key, block.parent, whose, block.tokens, block.data, seconds)

    shelf.store.put([timed(f"large{number}", OTHERS, 10.0) for number in range(10)], CAP)
    for number in range(60):
        shelf.store.put([timed(f"small{number}", OURS, 1.0)], CAP)
    large = [f"large{number}.0" for number in range(10)]
    assert shelf.has(*large, whose=OTHERS) == large


def test_models_out_of_use_leave_first_the_longest_unused_first(shelf: Shelf) -> None:
    shelf.put("third", whose=THIRD)
    for _ in range(20):
        shelf.touch("third.0")
    shelf.put(*"pqrst", whose=OTHERS)
    shelf.reopen()
    shelf.put("ours", blocks=10)
    stats = shelf.store.stats()
    assert stats["current"] == {"models": 1, "blocks": 10, "tokens": 1_000, "bytes": 10 * SIZE}
    assert stats["other"] == {"models": 2, "blocks": 6, "tokens": 600, "bytes": 6 * SIZE}
    gone, cap = 0, 0
    while not cap:
        shelf.fill(1)
        evicted = shelf.store.take_evicted()
        gone, cap = gone + evicted.foreign, evicted.cap
        assert bool(gone) != bool(shelf.has("third.0", whose=THIRD))
        assert shelf.filled < 60
    assert gone == 6
    assert not shelf.has(*(f"{name}.0" for name in "pqrst"), whose=OTHERS)


def test_a_model_that_comes_back_takes_room_from_the_one_before(shelf: Shelf) -> None:
    shelf.put("a", "b")
    shelf.put(*(f"other{number}" for number in range(25)), whose=OTHERS)
    shelf.reopen()
    shelf.put("ours", blocks=5)
    assert shelf.store.take_evicted().foreign > 0
    assert shelf.has("a.0", "b.0") == ["a.0", "b.0"]


def test_the_model_used_last_is_in_use_before_anything_is_asked(shelf: Shelf) -> None:
    shelf.put("old", whose=OTHERS)
    shelf.put("ours")
    shelf.reopen()
    assert shelf.store.stats()["current"]["blocks"] == 1
    shelf.store.touch([key("old.0")])
    shelf.store.touch([key("ours.0")])
    assert shelf.store.stats()["current"]["blocks"] == 2


def test_a_chain_leaves_as_a_whole(shelf: Shelf) -> None:
    shelf.put("a", "b", blocks=3)
    chains = [[f"{name}.{index}" for index in range(3)] for name in "ab"]
    while any(shelf.has(*chain) for chain in chains):
        shelf.fill(1)
        assert shelf.filled < 60
        assert all(shelf.has(*chain) in (chain, []) for chain in chains)


def test_the_start_of_a_chain_that_is_used_without_its_end_stays(shelf: Shelf) -> None:
    shelf.put("a", blocks=3)
    for _ in range(5):
        shelf.touch("a.0")
    shelf.fill()
    assert shelf.has("a.0", "a.1", "a.2") == ["a.0"]


def test_a_block_stays_as_long_as_one_that_continues_it(shelf: Shelf) -> None:
    shelf.put("a", blocks=2)
    for _ in range(5):
        shelf.touch("a.1")
    shelf.fill()
    assert shelf.has("a.0", "a.1") == ["a.0", "a.1"]


def test_dropping_a_block_drops_what_continues_it(shelf: Shelf) -> None:
    shelf.put("a", "b", blocks=4)
    shelf.store.drop([key("a.1")])
    assert shelf.has(*(f"{name}.{index}" for name in "ab" for index in range(4))) == [
        "a.0",
        *(f"b.{index}" for index in range(4)),
    ]


def test_room_for_a_continuation_is_not_taken_from_what_it_continues(shelf: Shelf) -> None:
    shelf.put("a", "b")
    shelf.fill(20)
    (last,) = body("c")
    shelf.store.put([StoredBlock(last.key, key("a.0"), OURS, 100, b"c" * 400_000)], CAP)
    assert shelf.has("a.0", "b.0", "c.0") == ["a.0", "c.0"]


@pytest.mark.parametrize("cap", [0, 1_000, 1_000_000])
def test_what_is_larger_than_the_cap_evicts_nothing(shelf: Shelf, cap: int) -> None:
    shelf.put("a")
    with pytest.raises(StoreError, match="too much for a cap"):
        shelf.store.put(body("huge", size=1_000_000), cap)
    assert shelf.has("a.0", "huge.0") == ["a.0"]


def test_writing_again_keeps_uses_and_changes_sums(shelf: Shelf) -> None:
    shelf.put("a")
    for _ in range(5):
        shelf.touch("a.0")
    shelf.store.put(body("a", size=SIZE // 2), CAP)
    assert shelf.store.stats()["payload_bytes"] == SIZE // 2
    shelf.fill()
    assert shelf.has("a.0")


def test_a_clock_set_back_takes_no_value_away(shelf: Shelf) -> None:
    shelf.put("a", "b")
    shelf.clock.now -= 10 * HALF_LIFE
    shelf.touch("a.0")
    shelf.clock.now += 10 * HALF_LIFE
    shelf.fill()
    assert shelf.has("a.0", "b.0") == ["a.0"]


def test_a_cap_far_below_the_size_is_reached_in_one_go(shelf: Shelf) -> None:
    for number in range(100):
        shelf.store.put(body(f"n{number}"), 50_000_000)
    size = shelf.store.file_bytes()
    assert shelf.store.gc(CAP) > size - CAP
    assert shelf.store.file_bytes() <= CAP
    # At a write, too.
    for number in range(100):
        shelf.store.put(body(f"n{number}"), 50_000_000)
    shelf.store.put(body("last"), CAP)
    assert shelf.store.file_bytes() <= CAP
    assert shelf.has("last.0")
