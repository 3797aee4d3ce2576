from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from kvd.errors import StoreError, UsageError
from kvd.kv.store import BlockStore, StoredBlock
from kvd.service.store_writer import StoreWriter
from tests.fakes.full_disk import FullDisk

FINGERPRINT = b"model"


def block(name: str, size: int = 10) -> StoredBlock:
    return StoredBlock(name.encode(), b"parent", FINGERPRINT, 4, name.encode() * size)


def stored(path: Path, *names: str) -> list[str]:
    """Which of `names` are in the store, seen through another connection."""
    store = BlockStore(path, readonly=True)
    try:
        return sorted(key.decode() for key in store.get([name.encode() for name in names], FINGERPRINT))
    finally:
        store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.db"


@pytest.fixture
def writer(path: Path) -> Iterator[StoreWriter]:
    writer = StoreWriter(path, lambda: 100_000_000)
    yield writer
    writer.close(5.0)


def test_nothing_is_opened_before_it_is_needed(writer: StoreWriter, path: Path) -> None:
    assert not path.exists()


def test_flushed_blocks_are_on_disk(writer: StoreWriter, path: Path) -> None:
    writer.put([block("a"), block("b")])
    writer.put([block("c")])
    assert writer.flush(5.0)
    assert stored(path, "a", "b", "c", "d") == ["a", "b", "c"]
    names = {"lost_blocks", "dropped_damaged", "evicted_cap", "evicted_foreign", "pending_bytes"}
    assert writer.counts() == {"written_blocks": 3, **dict.fromkeys(names, 0)}


def test_closing_writes_what_is_pending(path: Path) -> None:
    writer = StoreWriter(path, lambda: 100_000_000)
    for number in range(50):
        writer.put([block(f"n{number}")])
    writer.close(10.0)
    assert len(stored(path, *(f"n{number}" for number in range(50)))) == 50


def test_dropped_blocks_are_gone_and_counted(writer: StoreWriter, path: Path) -> None:
    writer.put([block("a"), block("b")])
    writer.drop([b"a"])
    assert writer.flush(5.0)
    assert stored(path, "a", "b") == ["b"]
    assert writer.counts()["dropped_damaged"] == 1


def test_the_cap_holds_and_the_least_recently_used_goes(path: Path) -> None:
    cap = 900_000
    writer = StoreWriter(path, lambda: cap)
    for name in "abc":
        writer.put([block(name, 100_000)])
    writer.touch([b"a"])
    for name in "defghij":
        writer.put([block(name, 100_000)])
        writer.touch([b"a"])
    writer.flush(5.0)
    left = stored(path, *"abcdefghij")
    writer.close(5.0)
    assert path.stat().st_size <= cap
    assert "a" in left
    assert "j" in left
    assert "b" not in left


def test_a_smaller_cap_takes_effect_at_gc(path: Path) -> None:
    cap = 100_000_000
    writer = StoreWriter(path, lambda: cap)
    writer.put([block(f"{number:03}", 30_000) for number in range(60)])
    assert writer.flush(60.0)
    cap = 2_000_000
    cleanup = writer.gc(60.0)
    assert cleanup.freed_bytes > 3_000_000
    assert (cleanup.foreign, cleanup.damaged) == (0, 0)
    assert cleanup.cap == writer.counts()["evicted_cap"] == 60 - BlockStore(path, readonly=True).stats()["blocks"]
    writer.close(5.0)
    assert path.stat().st_size <= cap


def test_unreadable_settings_keep_the_last_cap(path: Path) -> None:
    def cap() -> int:
        if path.exists():
            raise UsageError("no TOML")
        return 100_000_000

    writer = StoreWriter(path, cap)
    writer.put([block("a")])
    writer.put([block("b")])
    writer.close(5.0)
    # No cap could be read at all; the blocks are kept all the same.
    assert stored(path, "a", "b") == ["a", "b"]
    assert writer.counts()["lost_blocks"] == 0


def test_a_full_queue_loses_blocks_and_says_so(path: Path) -> None:
    held, go = threading.Event(), threading.Event()

    def cap() -> int:
        held.set()
        go.wait(10.0)
        return 100_000_000

    writer = StoreWriter(path, cap, max_pending=1_000)
    writer.put([block("a", 100)])
    assert held.wait(10.0)
    writer.put([block("b", 600)])
    writer.put([block("c", 600)])
    go.set()
    writer.close(5.0)
    assert stored(path, "a", "b", "c") == ["a", "b"]
    assert writer.counts()["lost_blocks"] == 1


def test_a_store_of_a_newer_version_is_left_alone(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.pragma("user_version", 99)
    db.close()
    writer = StoreWriter(path, lambda: 1_000)
    writer.put([block("a")])
    assert writer.flush(5.0)
    assert writer.counts()["lost_blocks"] == 1
    with pytest.raises(StoreError, match="newer"):
        writer.gc(5.0)
    writer.close(5.0)
    db = apsw.Connection(str(path))
    assert db.pragma("user_version") == 99
    assert db.execute("SELECT count(*) FROM sqlite_schema").get == 0
    db.close()


def test_a_damaged_store_is_made_anew(path: Path) -> None:
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    writer = StoreWriter(path, lambda: 100_000_000)
    writer.put([block("a")])
    writer.close(5.0)
    assert stored(path, "a") == ["a"]


def test_an_impossible_path_is_survived(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the folder's place")
    writer = StoreWriter(tmp_path / "file" / "kv.db", lambda: 1_000)
    writer.put([block("a")])
    assert writer.flush(5.0)
    assert writer.counts()["lost_blocks"] == 1
    with pytest.raises(StoreError):
        writer.gc(5.0)
    writer.close(5.0)


def test_a_write_lock_held_by_another_is_waited_for(writer: StoreWriter, path: Path) -> None:
    writer.put([block("a")])
    assert writer.flush(5.0)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    writer.put([block("b")])
    assert not writer.flush(0.2)
    other.execute("ROLLBACK")
    other.close()
    assert writer.flush(10.0)
    assert stored(path, "a", "b") == ["a", "b"]


def test_a_file_removed_under_the_writer_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "kv.db"
    writer = StoreWriter(path, lambda: 10**9)
    block = StoredBlock(b"k" * 32, bytes(32), b"f" * 32, 1, b"data")
    writer.put([block])
    assert writer.flush(10)
    for file in tmp_path.glob("kv.db*"):
        file.unlink()
    writer.put([block])
    assert writer.flush(10)
    writer.close(10)
    assert BlockStore(path, readonly=True).get([block.key], b"f" * 32) == {block.key: b"data"}


def test_damage_found_while_writing_starts_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "kv.db"
    writer = StoreWriter(path, lambda: 10**9)
    block = StoredBlock(b"k" * 32, bytes(32), b"f" * 32, 1, b"data")
    writer.put([block])
    assert writer.flush(10)
    other = apsw.Connection(str(path))
    other.execute("DROP TABLE blocks")
    other.close()
    writer.put([block])
    writer.put([block])
    assert writer.flush(10)
    writer.close(10)
    assert BlockStore(path, readonly=True).get([block.key], b"f" * 32) == {block.key: b"data"}


def test_a_put_larger_than_the_cap_is_lost_and_evicts_nothing(path: Path) -> None:
    writer = StoreWriter(path, lambda: 500_000)
    writer.put([block("a", 20_000)])
    writer.put([block("b", 600_000), block("c", 10)])
    assert writer.flush(5.0)
    writer.close(5.0)
    assert stored(path, "a", "b", "c") == ["a"]
    counts = writer.counts()
    assert (counts["written_blocks"], counts["lost_blocks"], counts["evicted_cap"]) == (1, 2, 0)


def test_who_left_is_counted_by_reason(path: Path) -> None:
    before = StoreWriter(path, lambda: 500_000)
    before.put([StoredBlock(b"foreign", b"parent", b"another", 4, bytes(100_000))])
    before.close(5.0)
    writer = StoreWriter(path, lambda: 500_000)
    for name in "abcdef":
        writer.put([block(name, 100_000)])
    writer.drop([b"f"])
    assert writer.flush(5.0)
    left = stored(path, *"abcdef")
    counts = writer.counts()
    assert (counts["evicted_foreign"], counts["evicted_cap"]) == (1, 5 - len(left))
    assert counts["dropped_damaged"] == 1
    assert writer.gc(5.0).damaged == 1
    assert writer.gc(5.0).damaged == 0
    writer.close(5.0)


def test_models_used_since_the_start_stay_in_use_when_the_file_is_opened_again(path: Path) -> None:
    writer = StoreWriter(path, lambda: 10**9)
    for name, whose in (("a", b"one"), ("b", b"two")):
        writer.put([StoredBlock(name.encode(), b"parent", whose, 4, b"data")])
    assert writer.flush(5.0)
    reader = BlockStore(path, readonly=True, since=writer.since)
    assert reader.stats()["current"]["models"] == 2
    later = BlockStore(path, readonly=True)
    assert (later.stats()["current"]["models"], later.stats()["other"]["models"]) == (1, 1)
    writer.close(5.0)


def test_on_a_full_disk_cleaning_up_gives_back_all_there_is(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = FullDisk()
    writer = StoreWriter(path, lambda: 100_000_000)
    try:
        writer.put([block("a", 20_000), block("b", 20_000)])
        assert writer.flush(5.0)
        disk.full = True
        writer.put([block("c", 20_000)])
        assert writer.flush(5.0)
        assert writer.counts()["lost_blocks"] == 1
        with path.open("rb") as reader:
            done = writer.gc(5.0)
            assert done.freed_bytes > 40_000
            assert (done.full_disk, done.cap, done.foreign) == (2, 0, 0)
            assert os.fstat(reader.fileno()).st_blocks == 0
        assert [file.name for file in path.parent.iterdir()] == []
        assert "database or disk is full; removed all 2 blocks" in caplog.text
        assert "0 blocks not written" not in caplog.text
        # There is room again.
        disk.full = False
        writer.put([block("d")])
        assert writer.flush(5.0)
        assert stored(path, "a", "b", "c", "d") == ["d"]
    finally:
        writer.close(5.0)
        disk.unregister()
