"""The file of all conversations of a user: schema, opening, versions.

They can't be made again, so nothing here removes or replaces the file. What is deleted from it is overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from kvd.errors import BusyError, StoreError
from kvd.regular import check_database
from kvd.sqlite import close, transaction

_BUSY_MS = 5_000
_LOG_BYTES = 1_000_000
_DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError)

_MIGRATIONS = (
    """
CREATE TABLE sessions (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    root         BLOB NOT NULL,
    name         TEXT NOT NULL,
    parent       INTEGER REFERENCES sessions (id) ON DELETE SET NULL,
    family       BLOB NOT NULL,
    model        TEXT NOT NULL DEFAULT '',
    model_sha256 TEXT NOT NULL DEFAULT '',
    created_at   REAL NOT NULL,
    used_at      REAL NOT NULL,
    closed       INTEGER NOT NULL DEFAULT 0,
    state        TEXT NOT NULL DEFAULT '',
    UNIQUE (root, name)
) STRICT;
CREATE INDEX sessions_by_use ON sessions (used_at);
CREATE INDEX sessions_by_family ON sessions (family);
CREATE TABLE turns (
    session_id  INTEGER NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    number      INTEGER NOT NULL,
    question    TEXT NOT NULL,
    answer      TEXT NOT NULL,
    finish      TEXT NOT NULL,
    asked_at    REAL NOT NULL,
    commit_id   TEXT NOT NULL,
    sources     TEXT NOT NULL,
    tokens      TEXT NOT NULL,
    timings_ms  TEXT NOT NULL,
    PRIMARY KEY (session_id, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE chunks (
    session_id INTEGER NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    label      INTEGER NOT NULL,
    turn       INTEGER NOT NULL,
    path       TEXT NOT NULL,
    start_line INTEGER NOT NULL,
    end_line   INTEGER NOT NULL,
    scope      TEXT NOT NULL,
    language   TEXT NOT NULL,
    hash       BLOB NOT NULL REFERENCES texts (hash),
    PRIMARY KEY (session_id, label)
) STRICT, WITHOUT ROWID;
CREATE INDEX chunks_by_hash ON chunks (hash);
CREATE TABLE texts (hash BLOB PRIMARY KEY, text TEXT NOT NULL) STRICT;
""",
    """
CREATE TABLE notes (
    root       BLOB NOT NULL,
    number     INTEGER NOT NULL,
    text       TEXT NOT NULL,
    created_at REAL NOT NULL,
    PRIMARY KEY (root, number)
) STRICT, WITHOUT ROWID;
""",
    """
-- Which of the code in the prompt an answer cites.
CREATE TABLE cited (
    session_id INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    label      INTEGER NOT NULL,
    PRIMARY KEY (session_id, number, label),
    FOREIGN KEY (session_id, number) REFERENCES turns (session_id, number) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
INSERT OR IGNORE INTO cited
    SELECT turns.session_id, number, label FROM turns, json_each(sources) AS source
    JOIN chunks ON chunks.session_id = turns.session_id AND chunks.turn <= number
        AND chunks.path = json_extract(source.value, '$.path')
        AND start_line = json_extract(source.value, '$.start_line')
        AND end_line = json_extract(source.value, '$.end_line')
    WHERE json_extract(source.value, '$.cited');
-- Which chunks of a prompt are turns that were recalled: those of the session `source_id`, which may be gone.
CREATE TABLE quoted (
    session_id INTEGER NOT NULL,
    label      INTEGER NOT NULL,
    source_id  INTEGER NOT NULL,
    session    TEXT NOT NULL,
    turn       INTEGER NOT NULL,
    asked_at   REAL NOT NULL,
    commit_id  TEXT NOT NULL,
    stale      INTEGER NOT NULL,
    PRIMARY KEY (session_id, label),
    FOREIGN KEY (session_id, label) REFERENCES chunks (session_id, label) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX quoted_by_source ON quoted (source_id);
-- Stored KV of turns that were recalled.
CREATE TABLE quoted_blocks (
    source_id INTEGER NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    key       BLOB NOT NULL,
    PRIMARY KEY (source_id, key)
) STRICT, WITHOUT ROWID;
-- Turns that can be found; `root` and `asked_at` are those of session and turn.
CREATE TABLE memories (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    root       BLOB NOT NULL,
    asked_at   REAL NOT NULL,
    vector     BLOB NOT NULL,
    UNIQUE (session_id, number),
    FOREIGN KEY (session_id, number) REFERENCES turns (session_id, number) ON DELETE CASCADE
) STRICT;
CREATE INDEX memories_by_root ON memories (root, asked_at);
CREATE VIRTUAL TABLE memory_words USING fts5 (words, tokenize = "unicode61 remove_diacritics 0 tokenchars '_'");
-- What is deleted leaves the index at once, rather than when it is next packed.
INSERT INTO memory_words (memory_words, rank) VALUES ('secure-delete', 1);
CREATE VIRTUAL TABLE memory_vocabulary USING fts5vocab ('memory_words', 'row');
CREATE TRIGGER memories_deleted AFTER DELETE ON memories BEGIN
    DELETE FROM memory_words WHERE rowid = old.id;
END;
-- Turns that can't be found yet.
CREATE TABLE unindexed (
    session_id INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    PRIMARY KEY (session_id, number),
    FOREIGN KEY (session_id, number) REFERENCES turns (session_id, number) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE TRIGGER turns_added AFTER INSERT ON turns BEGIN
    INSERT INTO unindexed VALUES (new.session_id, new.number);
END;
-- What made words and vectors; one row.
CREATE TABLE memory_maker (id INTEGER PRIMARY KEY CHECK (id = 0), name TEXT NOT NULL) STRICT;
INSERT INTO memory_maker VALUES (0, '');
""",
)
"""What brings a file from each version to the next, append only; an empty one has version 0."""
SCHEMA_VERSION = len(_MIGRATIONS)


@contextmanager
def opened(path: Path) -> Iterator[apsw.Connection]:
    """A connection, the file made where it is missing. Raises `StoreError` where it can't be used, `BusyError` where
    another program has it locked; within, too."""
    try:
        db = _open(path)
        try:
            yield db
        finally:
            close(db)
    except apsw.BusyError as error:
        raise BusyError(f"another program has locked {path}", hint="try again when it is done") from error
    except _DAMAGE as error:
        raise StoreError(
            f"the conversations in {path} can't be read ({error})", hint=f"mv {path} {path}.damaged"
        ) from error
    except (apsw.Error, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"can't use {path}: {reason}", hint="check the disk's space and rights") from error


def _open(path: Path) -> apsw.Connection:
    check_database(path)
    # Made before SQLite opens it, so that it (and its log, which takes over the mode) is never readable by others.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        db.set_busy_timeout(_BUSY_MS)
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA secure_delete = ON")
        # What was said is on disk when the answer is complete, also after a loss of power.
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        if _version(db, path) < SCHEMA_VERSION:
            db.execute("PRAGMA journal_mode = WAL")
            _migrate(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _version(db: apsw.Connection, path: Path) -> int:
    version = db.pragma("user_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise StoreError(f"{path} was written by a newer kvd (schema {version})", hint="update kvd")
    return version


def _migrate(db: apsw.Connection, path: Path) -> None:
    with transaction(db):
        # Another process may have done it since.
        for migration in _MIGRATIONS[_version(db, path) :]:
            db.execute(migration)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def overwrite_log(db: apsw.Connection) -> None:
    """Empty the log, in which rows that were deleted may still be."""
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
