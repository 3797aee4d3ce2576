"""What a killed writer leaves behind, and how much it had on disk meanwhile."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest
import torch

from kvd.kv.codec import decode, encode
from kvd.kv.store import BlockStore
from kvd.types import KVShape

SHAPE = KVShape(n_layer=2, width=64)
CHILD = Path(__file__).parents[1] / "fakes" / "mortal_store.py"
STEPS, RUNS = 200, 12
WHOSE = b"f" * 32
ROOMY, TIGHT = 50_000_000, 700_000


@dataclass(frozen=True)
class Frame:
    parent: bytes
    tokens: tuple[int, ...]
    data: bytes
    is_first: bool


def frames(dice: random.Random) -> dict[bytes, Frame]:
    """Chains of one to four real blocks, of 1 to 18 kB each; their keys are 32 bytes, as the pager's."""
    made: dict[bytes, Frame] = {}
    for body in range(60):
        parent = hashlib.blake2b(b"head %d" % body, digest_size=32).digest()
        for index in range(dice.randint(1, 4)):
            count = dice.randint(8, 128)
            tokens = tuple(dice.randrange(50_000) for _ in range(count))
            kv = torch.randn((2, 2, count, 64), generator=torch.Generator().manual_seed(body * 10 + index)).half()
            key = hashlib.blake2b(b"%d %d" % (body, index), digest_size=32).digest()
            made[key] = Frame(parent, tokens, encode(tokens, kv), index == 0)
            parent = key
    return made


def write_chains(file: Path, made: dict[bytes, Frame]) -> None:
    chains: list[list[Any]] = []
    for key, frame in made.items():
        if frame.is_first:
            chains.append([])
        chains[-1].append([key.hex(), frame.parent.hex(), len(frame.tokens), frame.data.hex()])
    file.write_text(json.dumps(chains))


@pytest.fixture(scope="module")
def made() -> dict[bytes, Frame]:
    return frames(random.Random(1))


def run(store: Path, chains: Path, seed: int, fatal: int, roomy: int = ROOMY) -> tuple[int, list[dict[str, Any]]]:
    """The child's exit status and what it said; a line cut off by its death is none."""
    numbers = (seed, STEPS, fatal, roomy, TIGHT)
    command = [sys.executable, str(CHILD), str(store), str(chains), *map(str, numbers)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines(keepends=True) if line.endswith("\n")]


def stored(path: Path) -> dict[bytes, tuple[bytes, bytes]]:
    """Parents and frames by key, as another connection sees them; the file is sound and adds up."""
    db = apsw.Connection(str(path))
    try:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = {row[0]: (row[1], row[2]) for row in db.execute("SELECT key, parent, data FROM blocks")}
        assert {row[0] for row in db.execute("SELECT key FROM usage")} == set(rows)
        sums = db.execute("SELECT total(blocks), total(size) FROM models").fetchall()
        assert sums == [(len(rows), sum(len(data) for _, data in rows.values()))]
        return rows
    finally:
        db.close()


def check(found: dict[bytes, tuple[bytes, bytes]], made: dict[bytes, Frame]) -> None:
    """Every frame opens and is the one that was written, and no chain has a hole."""
    for key, (parent, data) in found.items():
        assert data == made[key].data
        assert decode(data, SHAPE).tokens == made[key].tokens
        assert parent in found or made[key].is_first


def family(key: str, keys: Iterable[str], made: dict[bytes, Frame]) -> set[str]:
    """`key` and what continues it."""
    found = {key} if key else set()
    for other in made:
        if made[other].parent.hex() in found:
            found.add(other.hex())
    return found & set(keys)


def check_outcome(before: set[str], now: set[str], doing: dict[str, Any] | None, made: dict[bytes, Frame]) -> None:
    """What was stored before the killed step, and is now: the step was done whole or not at all."""
    verb = doing["verb"] if doing else ""
    if verb == "put" and doing:
        new = set(doing["keys"])
        assert new <= now or not (new - before) & now
        assert now <= before | new
        assert before <= now or not doing["roomy"]
    elif verb == "drop" and doing:
        assert now in (before, before - family("".join(doing["keys"]), before, made))
    elif verb == "gc":
        assert now <= before
    else:
        assert now == before


def test_a_killed_writer_loses_nothing_that_was_committed(tmp_path: Path, made: dict[bytes, Frame]) -> None:
    path, chains = tmp_path / "kv.db", tmp_path / "chains.json"
    write_chains(chains, made)
    dice = random.Random(2)
    before: set[str] = set()
    killed_in: set[str] = set()
    for seed in range(RUNS):
        # The first runs die early, when tables are made and filled; later ones anywhere in some 200 steps.
        status, said = run(path, chains, seed, dice.randint(1, 60 if seed < 3 else 5_000))
        assert status in (0, -signal.SIGKILL)
        assert not any(words.get("rebuilt") for words in said)
        before = next((set(words["stored"]) for words in reversed(said) if "stored" in words), before)
        doing = said[-1] if status and said and "verb" in said[-1] else None
        store = BlockStore(path)
        assert store.rebuilt == ""
        store.close()
        found = stored(path)
        check(found, made)
        check_outcome(before, {key.hex() for key in found}, doing, made)
        before = {key.hex() for key in found}
        killed_in.add(doing["verb"] if doing else "")
    assert {"put", "gc"} <= killed_in


def test_the_cap_holds_at_every_write_to_disk(tmp_path: Path, made: dict[bytes, Frame]) -> None:
    path, chains = tmp_path / "kv.db", tmp_path / "chains.json"
    write_chains(chains, made)
    status, said = run(path, chains, 7, fatal=0, roomy=TIGHT)
    assert status == 0
    assert not any(words.get("refused") for words in said)
    assert 0.8 * TIGHT < said[-1]["most_on_disk"] <= TIGHT
    check(stored(path), made)
