"""The index file of one repository: schema, opening, damage, versions.

One file at `paths.index_file(root)`, mode 0600, in WAL mode: readers see the last commit while an indexer writes.
Everything in it can be made again from the repository, so a damaged file is thrown away, and said to be.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from kvd.errors import StoreError
from kvd.recall.faults import DAMAGE, MET_DAMAGE, NOTED, locked_error, why
from kvd.recall.words import WORDS_VERSION
from kvd.regular import check_database
from kvd.sqlite import transaction

SCHEMA_VERSION = 2

BUSY_MS = 5_000
"""So long a lock of another program is waited for."""

REINSTALL = "pip install --force-reinstall apsw sqlite-vec"

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE files (
    id       INTEGER PRIMARY KEY,
    path     TEXT NOT NULL UNIQUE,
    size     INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    seen_ns  INTEGER NOT NULL,
    hash     BLOB NOT NULL,
    skipped  TEXT NOT NULL,
    language TEXT NOT NULL,
    by_lines INTEGER NOT NULL
) STRICT;
CREATE TABLE chunks (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    file_id    INTEGER NOT NULL REFERENCES files (id),
    start_line INTEGER NOT NULL,
    end_line   INTEGER NOT NULL,
    start_byte INTEGER NOT NULL,
    end_byte   INTEGER NOT NULL,
    scope      TEXT NOT NULL,
    symbols    TEXT NOT NULL,
    text       TEXT NOT NULL
) STRICT;
CREATE INDEX chunks_by_file ON chunks (file_id);
-- Chunks that have no vector yet.
CREATE TABLE pending (chunk_id INTEGER PRIMARY KEY REFERENCES chunks (id)) STRICT;
CREATE VIRTUAL TABLE words USING fts5 (
    body, path, symbols, content = '', contentless_delete = 1, tokenize = "unicode61 remove_diacritics 0 tokenchars '_'"
);
CREATE VIRTUAL TABLE vocabulary USING fts5vocab ('words', 'row');
"""

_COLUMNS = {
    "meta": "key value",
    "files": "id path size mtime_ns seen_ns hash skipped language by_lines",
    "chunks": "id file_id start_line end_line start_byte end_byte scope symbols text",
    "pending": "chunk_id",
}


class DamagedIndexError(Exception):
    """The file is no usable index; the message says how."""


def create_vectors(db: apsw.Connection, dimension: int) -> None:
    """Make the empty table of vectors; one that is there goes away with what it holds."""
    db.execute("DROP TABLE IF EXISTS vectors")
    db.execute(f"CREATE VIRTUAL TABLE vectors USING vec0 (embedding int8[{int(dimension)}])")


def open_for_writing(path: Path, root: Path, fingerprint: str) -> tuple[apsw.Connection, str]:
    """A connection to the index of `root`, made when missing, and why a former one was thrown away ("" if not).

    `fingerprint` names how texts are cut and read; an index with another one is made anew. The caller holds
    `only_writer`. Raises `StoreError` for a newer schema and when the file can't be made or written, `BusyError` where
    another program has it locked.
    """
    wanted = f"{fingerprint}/{WORDS_VERSION}"
    reason = ""
    try:
        check_database(path)
        if path.exists():
            try:
                if path.with_suffix(NOTED).exists():
                    raise DamagedIndexError("damaged file")
                db = _open(path)
                reason = _foreign(db, root, wanted)
                if not reason:
                    return db, ""
                db.close()
            except DamagedIndexError as error:
                reason = str(error)
        remove(path)
        return _create(path, root, wanted), reason
    except apsw.BusyError as error:
        raise locked_error(path, root) from error
    except (apsw.Error, OSError) as error:
        file = getattr(error, "filename", None) or path
        raise StoreError(
            f"can't write the index {file}: {why(error, path)}", hint="check the disk's space and rights"
        ) from error


def open_for_reading(path: Path, root: Path) -> apsw.Connection:
    """A connection that can't write. Raises `StoreError` where there is no usable index."""
    db = _open_existing(path, root, _open_to_read)
    db.execute("PRAGMA query_only = 1")
    return db


def open_as_it_is(path: Path, root: Path) -> apsw.Connection:
    """A connection to the index that is there. Raises as `open_for_writing` does, and where there is no usable one."""
    return _open_existing(path, root, lambda path: _open(path, thorough=False))


def _open_existing(path: Path, root: Path, connect: Callable[[Path], apsw.Connection]) -> apsw.Connection:
    hint = f"kvd index {root}"
    if not path.exists():
        raise StoreError(f"there is no index of {root}", hint=hint)
    try:
        check_database(path)
        return connect(path)
    except DamagedIndexError as error:
        raise StoreError(f"the index of {root} can't be used: {error}", hint=hint) from error
    except apsw.BusyError as error:
        raise locked_error(path, root) from error
    except (apsw.Error, OSError) as error:
        raise StoreError(f"can't read the index of {root}: {why(error, path)}", hint=hint) from error


def remove(path: Path) -> None:
    """Delete an index with what SQLite keeps beside it, and last the note that it is damaged."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.with_suffix(NOTED).unlink(missing_ok=True)


def rows(db: apsw.Connection, sql: str, bindings: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query; what types their values have is for the query's writer to know."""
    return list(db.execute(sql, bindings))


def read_meta(db: apsw.Connection) -> dict[str, str]:
    return {str(key): str(value) for key, value in db.execute("SELECT key, value FROM meta")}


def write_meta(db: apsw.Connection, **values: str) -> None:
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(values.items()))


@cache
def _vector_extension() -> str:
    """Where sqlite-vec's library is; importing the package would import numpy, which takes longer than a search."""
    spec = importlib.util.find_spec("sqlite_vec")
    if spec is None or spec.origin is None:
        raise StoreError("the package sqlite-vec is missing", hint=REINSTALL)
    return str(Path(spec.origin).with_name("vec0"))


def connect(path: Path | str, flags: int) -> apsw.Connection:
    """An open file, or one that is made, with vectors and what holds for every index."""
    db = apsw.Connection(str(path), flags=flags)
    try:
        db.set_busy_timeout(BUSY_MS)
        db.enable_load_extension(True)
        db.load_extension(_vector_extension())
        db.enable_load_extension(False)
        # What a loss of power may cost are the last commits, which the next run makes again.
        db.execute("PRAGMA synchronous = NORMAL")
        # A WAL that a burst of writing made long is cut when it is next emptied.
        db.execute("PRAGMA journal_size_limit = 8000000")
    except BaseException:
        db.close()
        raise
    return db


def _open_to_read(path: Path) -> apsw.Connection:
    """As it can be where nothing can be written: a reader too makes files beside the index."""
    try:
        return _open(path, thorough=False)
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.IOError, apsw.FullError):
        # Without a log all is in the file itself, and who can't make one can't change it either.
        if _wal_holds_data(path):
            raise
        return _open(path, thorough=False, alone=True)


def _open(path: Path, thorough: bool = True, alone: bool = False) -> apsw.Connection:
    """Open what should be an index; `DamagedIndexError` if it isn't one, `StoreError` if it is a newer one.

    `alone`: read the file and nothing beside it.
    """
    try:
        if alone:
            flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            db = connect(f"file:{quote(os.fspath(path))}?immutable=1", flags)
        else:
            db = connect(path, apsw.SQLITE_OPEN_READWRITE)
    except DAMAGE as error:
        raise DamagedIndexError(f"damaged file: {error}") from error
    try:
        _check_version(db, path)
        if thorough:
            _check_content(db, path)
    except MET_DAMAGE as error:
        db.close()
        raise DamagedIndexError(f"damaged file: {error}") from error
    except BaseException:
        db.close()
        raise
    return db


def _check_version(db: apsw.Connection, path: Path) -> None:
    version = db.pragma("user_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise StoreError(
            f"the index {path} was written by a newer kvd (schema {version}, this one knows {SCHEMA_VERSION})",
            hint="update kvd, or delete that file and run: kvd index",
        )
    if version < SCHEMA_VERSION:
        raise DamagedIndexError("unfinished or older file")


def _check_content(db: apsw.Connection, path: Path) -> None:
    for table, columns in _COLUMNS.items():
        there = [str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")]
        if there != columns.split():
            raise DamagedIndexError(f"table {table} is not as it should be")
    pages = db.pragma("page_count")
    size = path.stat().st_size
    header = db.pragma("page_size")
    if isinstance(pages, int) and isinstance(header, int) and not _wal_holds_data(path) and size < pages * header:
        raise DamagedIndexError("truncated file")
    # Touches the first page of each table without reading it all.
    for table in ("files", "chunks", "words", "vectors"):
        db.execute(f"SELECT rowid FROM {table} LIMIT 1").fetchall()
    if "root" not in read_meta(db):
        raise DamagedIndexError("it does not say which repository it is of")


def _wal_holds_data(path: Path) -> bool:
    try:
        return path.with_name(path.name + "-wal").stat().st_size > 0
    except OSError:
        return False


def _foreign(db: apsw.Connection, root: Path, wanted: str) -> str:
    """Why this sound index can't serve `root`, or ""."""
    meta = read_meta(db)
    if meta["root"] != str(root):
        return f"the file held the index of {meta['root']}"
    return "" if meta.get("fingerprint") == wanted else "texts are cut or read in another way now"


def _create(path: Path, root: Path, fingerprint: str) -> apsw.Connection:
    # Made before SQLite opens it, so that it (and its WAL, which takes over the mode) is never readable by others.
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    db = connect(path, apsw.SQLITE_OPEN_READWRITE)
    try:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        with transaction(db):
            db.execute(SCHEMA)
            create_vectors(db, 1)
            write_meta(db, root=str(root), fingerprint=fingerprint, embedder="", complete="")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        db.close()
        raise
    return db
