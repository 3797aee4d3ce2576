"""Transactions that leave the other threads alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from kvd.sqlite import close, transaction


def connection(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = WAL")
    return db


@pytest.fixture
def db(tmp_path: Path) -> Iterator[apsw.Connection]:
    db = connection(tmp_path / "a.db")
    db.execute("CREATE TABLE numbers (n UNIQUE)")
    yield db
    db.close()


def numbers(db: apsw.Connection) -> list[int]:
    return [n for (n,) in db.execute("SELECT n FROM numbers")]


def test_all_or_nothing(db: apsw.Connection) -> None:
    with transaction(db):
        db.execute("INSERT INTO numbers VALUES (1)")
    with pytest.raises(apsw.ConstraintError), transaction(db):
        # What was done before the fault stays, where nothing undoes it.
        db.execute("INSERT OR FAIL INTO numbers VALUES (2), (1)")
    assert numbers(db) == [1]
    assert not db.in_transaction


def test_a_transaction_that_sqlite_has_ended_already(db: apsw.Connection) -> None:
    with pytest.raises(apsw.ConstraintError), transaction(db):
        db.execute("INSERT OR ROLLBACK INTO numbers VALUES (2), (2)")
    assert numbers(db) == []


def test_others_go_on_while_one_waits_for_a_lock(db: apsw.Connection, tmp_path: Path) -> None:
    other = connection(tmp_path / "a.db")
    other.execute("BEGIN IMMEDIATE")
    db.set_busy_timeout(60_000)
    waiting = threading.Event()

    def write() -> None:
        waiting.set()
        with transaction(db):
            db.execute("INSERT INTO numbers VALUES (1)")

    # The lock is let go by a thread that can't run while that one holds Python's.
    writer = threading.Thread(target=write)
    writer.start()
    assert waiting.wait(10.0)
    other.execute("ROLLBACK")
    writer.join(30.0)
    assert not writer.is_alive()
    assert numbers(other) == [1]
    other.close()


def test_a_lock_that_is_not_let_go(db: apsw.Connection, tmp_path: Path) -> None:
    other = connection(tmp_path / "a.db")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(apsw.BusyError), transaction(db):
        pytest.fail("it has begun")
    other.close()


def test_closing_leaves_no_log(db: apsw.Connection, tmp_path: Path) -> None:
    other = connection(tmp_path / "a.db")
    with transaction(other):
        other.execute("INSERT INTO numbers VALUES (1)")
    reads = apsw.Connection(str(tmp_path / "a.db"), flags=apsw.SQLITE_OPEN_READONLY)
    close(other)
    # In the file itself, also where others have it open.
    alone = apsw.Connection(
        f"file:{tmp_path / 'a.db'}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )
    assert numbers(alone) == [1]
    alone.close()
    reads.close()
