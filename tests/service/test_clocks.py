"""A clock that is set forwards or backwards, by a day, under a service with real files and indexes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kvd.kv.store import BlockStore, StoredBlock
from kvd.service.recent import note_use, recently_used

from .test_indexer import hits, update
from .test_watching import Desk, put, run

DAY = 86_400.0


@pytest.fixture(params=[DAY, -DAY], ids=["forwards", "backwards"])
def jump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """What the clock is set by when `set_clock` is called."""
    return float(request.param)


def set_clock(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + by)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + int(by * 1e9))


def test_edits_are_noticed_and_found_after_a_jump(
    repository: Path, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(desk: Desk) -> None:
        runs = await desk.watch(repository)
        set_clock(monkeypatch, jump)
        put(repository / "src" / "later.py", "def made_after_the_jump():\n    return 1\n")
        await desk.until(lambda: desk.has(repository, "made_after_the_jump"))
        await desk.until(lambda: desk.more_runs_than(runs))
        found = await desk.service.search("made_after_the_jump", str(repository), 1, lambda value: None)
        assert found["sources"][0]["path"] == "src/later.py"
        put(repository / "src" / "later.py", "def made_once_more_after():\n    return 1\n")
        found = await desk.service.search("made_once_more_after", str(repository), 1, lambda value: None)
        assert found["sources"][0]["path"] == "src/later.py"

    run(body)


def test_a_time_that_is_still_to_come_hides_no_change(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    later = time.time_ns() + int(DAY * 1e9)

    def write(text: str) -> None:
        file.write_text(text)
        os.utime(file, ns=(later, later))

    write("def alpha_function(): pass\n")
    update(tmp_path)
    # Of the same size, with the same time.
    write("def omega_function(): pass\n")
    assert update(tmp_path).changed == 1
    assert hits(tmp_path, "omega_function") == ["a.py"]
    assert update(tmp_path).unchanged == 1


def test_repositories_used_before_a_jump_are_remembered(
    repository: Path, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    update(repository)
    note_use(repository)
    set_clock(monkeypatch, jump)
    assert recently_used(3 * DAY, 4) == [repository]


def test_a_model_in_use_stays_in_use_when_the_clock_goes_back(tmp_path: Path) -> None:
    now = 1e9

    def block(model: bytes, number: int) -> StoredBlock:
        return StoredBlock(model * 31 + bytes([number]), bytes(32), model * 32, 1, os.urandom(20_000))

    path, cap = tmp_path / "kv.db", 1_000_000
    store = BlockStore(path, clock=lambda: now)
    store.put([block(b"a", number) for number in range(10)], cap)
    now -= DAY
    # Another model, used since.
    store.put([block(b"b", number) for number in range(10)], cap)
    assert (store.stats()["current"]["models"], store.stats()["other"]["models"]) == (2, 0)
    for start in range(10, 60, 10):
        store.put([block(b"b", number) for number in range(start, start + 10)], cap)
    assert store.take_evicted().foreign == 0
    assert store.file_bytes() <= cap
    store.close()
