"""The cold store against a model of it in plain Python, step by step."""

from __future__ import annotations

import hashlib
import math
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvd.errors import StoreError
from kvd.kv.eviction import HALF_LIFE
from kvd.kv.store import BlockStore, StoredBlock

CAPS = (300_000, 500_000, 900_000)
MODELS = [name * 32 for name in (b"a", b"b", b"c")]
TRANSACTION = 250_000
"""More than any put here writes to the log and to the file: four frames of 20 kB, and pages of trees."""


@dataclass
class Entry:
    parent: bytes
    whose: bytes
    data: bytes
    tokens: int
    uses: float = 0.0
    used_at: float = 0.0

    def use(self, now: float) -> None:
        self.uses = 1 + self.uses * 0.5 ** (max(0.0, now - self.used_at) / HALF_LIFE)
        self.used_at = max(self.used_at, now)

    @property
    def value(self) -> float:
        return math.log2(self.tokens / len(self.data)) + math.log2(self.uses) + self.used_at / HALF_LIFE


@dataclass
class Model:
    """What should be stored, and which models were used when."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    used: dict[bytes, float] = field(default_factory=dict)

    def current(self, since: float) -> set[bytes]:
        last = max(self.used.values(), default=0.0)
        return {whose for whose, when in self.used.items() if when >= since or when == last}

    def ends(self) -> set[bytes]:
        """Blocks that nothing continues."""
        return set(self.entries) - {entry.parent for entry in self.entries.values()}

    def with_rest(self, key: bytes) -> set[bytes]:
        found, size = {key}, 0
        while len(found) > size:
            size = len(found)
            found |= {other for other, entry in self.entries.items() if entry.parent in found}
        return found


def digest(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=32).digest()


class ColdStore(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        # A reader that does not end is waited for at each step: not for long.
        self.patch.setattr("kvd.kv.space._CHECKPOINT_MS", 1)
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "kv.db"
        self.now = 1_800_000_000.0
        self.cap = CAPS[1]
        self.over = False
        """Was the cap lowered since room was made?"""
        self.model = Model()
        self.roots: set[bytes] = set()
        self.reader: apsw.Connection | None = None
        self.open()

    def open(self) -> None:
        self.since = self.now
        self.store = BlockStore(self.path, since=self.since, clock=lambda: self.now)

    def teardown(self) -> None:
        self.let_go()
        self.store.close()
        self.folder.cleanup()
        self.patch.undo()

    def found(self) -> dict[bytes, tuple[bytes, bytes, bytes]]:
        db = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            rows = db.execute("SELECT key, parent, fingerprint, data FROM blocks")
            return {row[0]: (row[1], row[2], row[3]) for row in rows}
        finally:
            db.close()

    def settle(self, ends: set[bytes], spared: frozenset[bytes] = frozenset()) -> None:
        """Take over what was evicted, if it was rightly: `ends` are the ends of chains from before."""
        entries, left = self.model.entries, set(self.found())
        gone = set(entries) - left
        current = self.model.current(self.since)
        theirs = {key for key in gone if entries[key].whose in current}
        foreign = {key for key, entry in entries.items() if entry.whose not in current}
        if theirs:
            assert foreign <= gone, "a block in use left before one that is not"
        lost = [self.model.used[entries[key].whose] for key in foreign & gone]
        stay = [self.model.used[entries[key].whose] for key in foreign - gone]
        assert not (lost and stay) or max(lost) <= min(stay), "a model left before one unused for longer"
        out = [entries[key].value for key in ends & theirs]
        kept = [entries[key].value for key in (ends & left) - foreign - spared]
        assert not (out and kept) or max(out) <= min(kept) + 1e-9, "something of more worth left first"
        evicted = self.store.take_evicted()
        assert (evicted.cap, evicted.foreign) == (len(theirs), len(gone) - len(theirs))
        for key in gone:
            del entries[key]

    def write(self, blocks: list[StoredBlock]) -> None:
        self.now += 60.0
        ends, spared = self.model.ends(), frozenset(key for block in blocks for key in (block.key, block.parent))
        whose = blocks[0].fingerprint
        used, self.model.used[whose] = self.model.used.get(whose, 0.0), self.now
        try:
            self.store.put(blocks, self.cap)
        except StoreError:
            # With the largest cap there is room for any body.
            assert self.reader is not None or self.cap < max(CAPS)
            self.settle(ends, spared)
            if used >= self.since:
                self.model.used[whose] = used
            return
        self.settle(ends, spared)
        self.over = False
        for block in blocks:
            new = Entry(block.parent, block.fingerprint, block.data, block.tokens)
            entry = self.model.entries.setdefault(block.key, new)
            entry.data = block.data
            entry.use(self.now)

    @initialize(seed=st.integers(0, 100), bodies=st.integers(0, 25), restarted=st.booleans())
    def fill(self, seed: int, bodies: int, restarted: bool) -> None:
        """A store that is nearly full, so that what follows has something to evict."""
        dice = random.Random(seed)
        for number in range(bodies):
            sizes = [dice.randint(2_000, 15_000) for _ in range(dice.randint(1, 3))]
            self.put_body(dice.choice(MODELS[:2]), number, sizes, dice.randint(20, 128))
        if restarted:
            self.restart()

    @rule(
        whose=st.sampled_from(MODELS),
        number=st.integers(0, 25),
        sizes=st.lists(st.integers(500, 20_000), min_size=1, max_size=4),
        tokens=st.integers(1, 128),
    )
    def put_body(self, whose: bytes, number: int, sizes: list[int], tokens: int) -> None:
        """A whole chain, new or written again with other frames."""
        parent = digest("head", whose, number)
        self.roots.add(parent)
        blocks = []
        for index, size in enumerate(sizes):
            key = digest(whose, number, index)
            if key in self.model.entries:
                tokens = self.model.entries[key].tokens
            blocks.append(StoredBlock(key, parent, whose, tokens, key[:1] * size))
            parent = key
        self.write(blocks)

    @precondition(lambda self: self.model.entries)
    @rule(pick=st.none() | st.integers(0, 1_000), size=st.integers(500, 20_000), branch=st.integers(0, 2))
    def put_continuation(self, pick: int | None, size: int, branch: int) -> None:
        """Of any block, or of the one that would leave next."""
        entries = self.model.entries
        parent = min(self.model.ends(), key=lambda key: entries[key].value) if pick is None else self.some(pick)
        whose = self.model.entries[parent].whose
        depth, above = 0, parent
        while above in self.model.entries:
            depth, above = depth + 1, self.model.entries[above].parent
        if depth < 6:
            self.write([StoredBlock(digest(parent, branch), parent, whose, 64, b"x" * size)])

    def some(self, pick: int) -> bytes:
        keys = sorted(self.model.entries)
        return keys[pick % len(keys)]

    @precondition(lambda self: self.model.entries)
    @rule(picks=st.lists(st.integers(0, 1_000), min_size=1, max_size=5, unique=True), pause=st.integers(1, 400_000))
    def touch(self, picks: list[int], pause: int) -> None:
        self.now += pause
        keys = {self.some(pick) for pick in picks}
        try:
            self.store.touch(sorted(keys))
        except StoreError:
            assert self.reader is not None
            return
        for key in keys:
            self.model.entries[key].use(self.now)
            self.model.used[self.model.entries[key].whose] = self.now

    @precondition(lambda self: self.model.entries)
    @rule(pick=st.integers(0, 1_000))
    def drop(self, pick: int) -> None:
        key = self.some(pick)
        try:
            self.store.drop([key])
        except StoreError:
            assert self.reader is not None
            return
        for gone in self.model.with_rest(key):
            del self.model.entries[gone]

    @rule(cap=st.sampled_from(CAPS))
    def gc(self, cap: int) -> None:
        ends = self.model.ends()
        self.cap, self.over = cap, self.reader is not None
        self.store.gc(cap)
        self.settle(ends)

    @rule(cap=st.sampled_from(CAPS))
    def change_cap(self, cap: int) -> None:
        self.over = self.over or cap < self.cap
        self.cap = cap

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.now += 60.0
        self.open()

    @precondition(lambda self: self.reader is None)
    @rule()
    def hold(self) -> None:
        """Another process begins to read and does not end."""
        self.reader = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        self.reader.execute("BEGIN")
        self.reader.execute("SELECT count(*) FROM blocks").fetchall()

    @precondition(lambda self: self.reader is not None)
    @rule()
    def let_go(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.reader = None

    @invariant()
    def the_store_is_what_the_model_says(self) -> None:
        found = self.found()
        assert found == {key: (entry.parent, entry.whose, entry.data) for key, entry in self.model.entries.items()}
        assert all(parent in found or parent in self.roots for parent, _, _ in found.values()), "a chain has a hole"
        stats = self.store.stats()
        current = self.model.current(self.since)
        for name, mine in (("current", True), ("other", False)):
            part = [entry for entry in self.model.entries.values() if (entry.whose in current) == mine]
            assert stats[name]["blocks"] == len(part)
            assert stats[name]["bytes"] == sum(len(entry.data) for entry in part)
            assert stats[name]["tokens"] == sum(entry.tokens for entry in part)

    @invariant()
    def the_cap_holds(self) -> None:
        if not self.over:
            assert self.store.file_bytes() <= self.cap + TRANSACTION

    @invariant()
    def the_file_is_sound(self) -> None:
        db = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        db.close()


TestColdStore = ColdStore.TestCase
TestColdStore.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
