from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from kvd.kv import schema
from kvd.kv.store import BlockStore, StoredBlock

OURS, OTHERS = b"a" * 32, b"b" * 32

VERSION_1 = """
CREATE TABLE blocks (
    key         BLOB PRIMARY KEY,
    parent      BLOB NOT NULL,
    fingerprint BLOB NOT NULL,
    tokens      INTEGER NOT NULL,
    size        INTEGER NOT NULL,
    used_at     REAL NOT NULL,
    data        BLOB NOT NULL
) STRICT;
CREATE INDEX blocks_by_use ON blocks (used_at);
"""
"""As files of version 1 were made, whatever the program says of it today."""


def key(number: int) -> bytes:
    return b"%032d" % number


def a_file_of_version_1(path: Path, blocks: int = 200, auto_vacuum: str = "INCREMENTAL") -> None:
    """Blocks of two models by turns, the one with the larger number used later."""
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA auto_vacuum = {auto_vacuum}")
    db.execute("PRAGMA journal_mode = WAL")
    with db:
        db.execute(VERSION_1)
        db.pragma("user_version", 1)
        for number in range(blocks):
            whose = OTHERS if number % 2 else OURS
            data = b"%03d" % number * 5_000
            row = (key(number), key(number + 1_000), whose, 50, len(data), 1_700_000_000.0 + number, data)
            db.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    db.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.db"


def test_the_first_migration_is_what_it_was() -> None:
    assert schema.MIGRATIONS[0].split() == VERSION_1.split()


def test_a_file_of_version_1_keeps_its_blocks(path: Path) -> None:
    a_file_of_version_1(path)
    store = BlockStore(path)
    assert store.rebuilt == ""
    for whose, odd in ((OURS, 0), (OTHERS, 1)):
        wanted = range(odd, 200, 2)
        assert store.get([key(number) for number in range(200)], whose) == {
            key(number): b"%03d" % number * 5_000 for number in wanted
        }
    stats = store.stats()
    assert (stats["blocks"], stats["tokens"]) == (200, 10_000)
    assert stats["payload_bytes"] == 200 * 15_000
    assert (stats["current"]["blocks"], stats["other"]["blocks"]) == (100, 100)
    # What was used last stays longest, as before.
    store.gc(1_000_000)
    assert not store.get([key(number) for number in range(200)], OURS)
    left = sorted(store.get([key(number) for number in range(200)], OTHERS))
    assert 20 < len(left) < 80
    assert left == [key(number) for number in range(200) if number % 2][-len(left) :]


def test_a_migration_happens_once(path: Path) -> None:
    a_file_of_version_1(path)
    BlockStore(path).close()
    store = BlockStore(path)
    store.put([StoredBlock(key(1_000), key(0), OURS, 1, b"new")])
    assert store.stats()["blocks"] == 201


def test_a_reader_of_a_file_that_was_not_migrated_yet(path: Path) -> None:
    a_file_of_version_1(path)
    reader = BlockStore(path, readonly=True)
    assert reader.get([key(2)], OURS) == {key(2): b"002" * 5_000}
    assert set(reader.stats()) == {"file_bytes"}
    BlockStore(path).close()
    assert reader.get([key(2)], OURS) == {key(2): b"002" * 5_000}
    assert reader.stats()["blocks"] == 200


def test_a_migration_that_fails_leaves_the_old_version(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_file_of_version_1(path, blocks=10)
    monkeypatch.setattr(schema, "MIGRATIONS", (schema.MIGRATIONS[0], schema.MIGRATIONS[1] + "; SELECT no_such();"))
    db = apsw.Connection(str(path))
    with pytest.raises(apsw.SQLError):
        schema.prepare(db)
    assert db.pragma("user_version") == 1
    assert db.execute("SELECT count(used_at) FROM blocks").get == 10
    db.close()


def test_a_file_that_cannot_give_back_space_is_made_anew(path: Path) -> None:
    a_file_of_version_1(path, auto_vacuum="NONE")
    store = BlockStore(path)
    assert "can't give back" in store.rebuilt
    store.put([StoredBlock(key(1), key(0), OURS, 1, b"new")])
    db = apsw.Connection(str(path))
    assert db.pragma("auto_vacuum") == 2
    db.close()
