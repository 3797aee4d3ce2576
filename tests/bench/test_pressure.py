from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvd.bench import footprint
from kvd.bench.footprint import Resident
from kvd.bench.libraries import RepositoryLibrary, by_bytes, definitions
from kvd.bench.pressure import Tally, drawn, fitting_context
from kvd.bench.pressure_report import lines
from kvd.config import Settings
from kvd.errors import UsageError
from kvd.kv.pool import pool_bytes_for
from kvd.service.indexer import update_index
from kvd.types import KVShape
from tests.conftest import Kvd

SHAPE = KVShape(n_layer=2, width=8)


def tokens(**counts: int) -> dict[str, int]:
    return {**dict.fromkeys(("resident", "reused_hot", "reused_cold", "recomputed", "prefilled"), 0), **counts}


def test_what_is_computed_a_second_time_is_counted() -> None:
    tally = Tally(recompute=0)
    tally.count(tokens(prefilled=150), [("a", 100), ("b", 50)])
    tally.count(tokens(reused_hot=100, prefilled=70), [("a", 100), ("c", 70)])
    assert tally.again == 0
    tally.count(tokens(prefilled=120), [("b", 50), ("c", 70)])
    assert tally.again == 120
    # A copy in the same prompt should have been found, too.
    tally.count(tokens(prefilled=60), [("d", 30), ("d", 30)])
    assert tally.again == 150
    shown = tally.to_json()
    assert (shown["answered"], shown["failed"], shown["distinct_tokens"]) == (4, 0, 250)
    assert shown["tokens"] == {"recalled": 500, **tokens(reused_hot=100, prefilled=400)}


def test_what_is_computed_in_place_is_no_second_time() -> None:
    tally = Tally(recompute=8)
    tally.count(tokens(prefilled=92, recomputed=13), [("a", 100), ("short", 5)])
    tally.count(tokens(reused_hot=92, recomputed=8), [("a", 100)])
    assert tally.again == 0
    tally.count(tokens(prefilled=92, recomputed=8), [("a", 100)])
    assert tally.again == 92


@pytest.fixture
def wide(isolated_home: Path) -> Path:
    """A repository without history: many small functions that have little in common."""
    root = isolated_home / "wide"
    root.mkdir()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for number in range(120):
        lines = "\n".join(f"    value{number} = value{number} * {line} + offset{line}" for line in range(8))
        (root / f"part{number}.py").write_text(
            f"def function{number}(value{number}):\n{lines}\n    return value{number}\n", "utf-8"
        )
    return root


def a_library(root: Path) -> RepositoryLibrary:
    update_index(root, Settings(), lambda progress: None, lambda: False)
    return RepositoryLibrary(root, definitions(root), Settings(), by_bytes)


def test_definitions_are_asked_about(repository: Path) -> None:
    update_index(repository, Settings(), lambda progress: None, lambda: False)
    asked = definitions(repository)
    assert "What does paintRectangle do?" in asked
    assert any("is_expired" in text for text in asked)
    assert asked == sorted(set(asked))


def test_questions_recall_enough_and_are_the_same_for_a_seed(wide: Path) -> None:
    library = a_library(wide)
    chosen, distinct = drawn(library, 1500, 30, seed=1)
    assert (chosen, distinct) == drawn(library, 1500, 30, seed=1)
    assert chosen != drawn(library, 1500, 30, seed=2)[0]
    assert len(chosen) == 30
    found = {chunk.id: chunk.tokens for number in chosen for chunk in library.recall(number)}
    assert sum(found.values()) == distinct >= 1500
    # Not more different questions than it takes.
    assert len(set(chosen)) < 30
    with pytest.raises(UsageError, match=r"2 questions about wide recall [\d,]+ tokens of code, not 90,000"):
        drawn(library, 90_000, 2, seed=1)


def test_what_a_question_finds_is_known_by_its_place(wide: Path) -> None:
    library = a_library(wide)
    places = library.places(0)
    assert {chunk.id for chunk in library.recall(0)} <= {chunk.id for chunk in places.values()}
    assert all(path.startswith("part") and first == 1 and last == 10 for path, first, last in places)


def test_the_context_is_the_largest_that_the_pool_suffices_for() -> None:
    assert fitting_context(SHAPE, 12_500, 8192) == 8192
    n_ctx = fitting_context(SHAPE, 6000, 8192)
    assert 2048 < n_ctx < 8192
    pool_bytes_for(SHAPE, n_ctx, 6000 * SHAPE.bytes_per_token)
    with pytest.raises(UsageError):
        pool_bytes_for(SHAPE, n_ctx + 256, 6000 * SHAPE.bytes_per_token)
    with pytest.raises(UsageError, match="a pool of 1,000 tokens is too small"):
        fitting_context(SHAPE, 1000, 8192)


def test_memory_against_what_was_configured() -> None:
    configured = footprint.configured(100, 40, 200, 30, Resident(190, 195))
    assert (configured.fixed, configured.total) == (20, 360)
    compared = footprint.compared(Resident(190, 195), Resident(342, 378), configured.total)
    assert compared == {
        "loaded": 190,
        "end": 342,
        "most": 378,
        "end_off": pytest.approx(-0.05),
        "most_off": pytest.approx(0.05),
    }
    mine = footprint.resident(os.getpid())
    assert mine is not None
    assert 1_000_000 < mine.now <= mine.most
    assert footprint.resident(2**22 + 1) is None


def a_run(kvd: Kvd, root: Path, *options: str) -> dict[str, Any]:
    return kvd.json("bench", "pressure", "--repo", str(root), *options, timeout=580)


def test_a_repository_with_too_little_code_is_one_line(kvd: Kvd, repository: Path, tmp_path: Path) -> None:
    error = a_run(kvd, repository, "--work", str(tmp_path))["error"]
    assert error["code"] == "usage"
    assert error["message"].endswith("tokens of code, not 50,000")
    assert kvd.json("status")["running"] is False


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_under_pressure_nothing_fails_and_nothing_is_computed_again(
    kvd: Kvd, wide: Path, tmp_path: Path, isolated_home: Path
) -> None:
    result = a_run(kvd, wide, "--tokens", "10000", "--questions", "150", "--work", str(tmp_path))
    assert "error" not in result, result
    assert (result["answered"], result["failed"], result["prefilled_again"]) == (150, 0, 0)
    assert result["settings"]["pool_tokens"] * 4 <= result["distinct_tokens"] < 20_000
    blocks = result["blocks"]
    assert blocks["evictions"] > 0
    assert blocks["written"] == blocks["stored"]
    assert result["tokens"]["reused_cold"] > 0
    engine = result["memory"]["engine"]
    assert engine["configured"] == sum(engine[name] for name in ("weights", "cells", "pool", "fixed"))
    text = "\n".join(lines(result))
    assert "answered 150, failed 0" in text
    # The user's own daemon, index and store were left alone.
    assert not (isolated_home / "cache" / "kvd" / "kv.db").exists()
    assert kvd.json("status")["running"] is False
