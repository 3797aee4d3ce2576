"""Writing an index: what is known of each file, and one file's chunks and words in or out.

Vectors follow later: see `kvd.recall.vectors`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from kvd.errors import CancelledError, StoreError
from kvd.recall import database
from kvd.recall.embed import Embedder, label
from kvd.recall.stems import terms
from kvd.sqlite import transaction
from kvd.types import Chunk

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

_WAIT_S = 0.05
_LONG_S = 0.5
_COMPACT_AFTER = 4_000
"""Deleted chunks after which vectors and words, which don't shrink by themselves, are packed."""


@dataclass(frozen=True, slots=True)
class KnownFile:
    """What the index holds of one file. `skipped` is why it has no chunks, or ""."""

    id: int
    size: int
    mtime_ns: int
    seen_ns: int
    hash: bytes
    skipped: str


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file's new content. Each chunk comes with the names that are defined in it; none for a skipped file.

    `by_lines`: it was cut without a grammar.
    """

    path: str
    size: int
    mtime_ns: int
    seen_ns: int
    hash: bytes
    language: str
    skipped: str
    by_lines: bool
    chunks: Sequence[tuple[Chunk, tuple[str, ...]]]


@contextmanager
def only_writer(
    path: Path, cancelled: Callable[[], bool], waiting: Callable[[float], None] = lambda seconds: None
) -> Iterator[None]:
    """Hold the lock of the index at `path`; waits for another indexer, in this process or another.

    `waiting` is called again and again when that takes a while, with the seconds so far; what it raises ends the wait.
    Raises `CancelledError` when cancelled while waiting.
    """
    try:
        descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"can't lock the index {path}: {error.strerror}", hint="check the disk's space and rights"
        ) from error
    began = time.monotonic()
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if cancelled():
                    raise CancelledError("indexing was cancelled") from None
                if (seconds := time.monotonic() - began) > _LONG_S:
                    waiting(seconds)
                time.sleep(_WAIT_S)
        yield
    finally:
        os.close(descriptor)


class IndexWriter:
    """The writing side of one index; use under `only_writer`. Each method is one transaction."""

    def __init__(self, db: apsw.Connection, embedder: Embedder) -> None:
        self._db = db
        self._embedder = embedder

    def known_files(self) -> dict[str, KnownFile]:
        rows = self._db.execute("SELECT path, id, size, mtime_ns, seen_ns, hash, skipped FROM files")
        return {str(path): KnownFile(*rest) for path, *rest in rows}

    def use_embedder(self) -> str:
        """Throw all vectors away if another embedder made them; returns why, or ""."""
        before = database.read_meta(self._db).get("embedder", "")
        now = label(self._embedder)
        if before == now:
            return ""
        with transaction(self._db):
            database.create_vectors(self._db, self._embedder.dimension)
            self._db.execute("INSERT OR IGNORE INTO pending SELECT id FROM chunks")
            database.write_meta(self._db, embedder=now)
        return f"vectors by {before}, now by {now}" if before else ""

    def put(self, files: Sequence[NewFile]) -> None:
        """Replace what the index holds of these files."""
        with transaction(self._db):
            self._delete_chunks([file.path for file in files])
            for file in files:
                self._put_one(file)

    def _put_one(self, file: NewFile) -> None:
        row = database.rows(
            self._db,
            "INSERT INTO files (path, size, mtime_ns, seen_ns, hash, skipped, language, by_lines)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (path) DO UPDATE SET size = excluded.size, mtime_ns = excluded.mtime_ns,"
            " seen_ns = excluded.seen_ns, hash = excluded.hash, skipped = excluded.skipped,"
            " language = excluded.language, by_lines = excluded.by_lines"
            " RETURNING id",
            (
                file.path,
                file.size,
                file.mtime_ns,
                file.seen_ns,
                file.hash,
                file.skipped,
                file.language,
                file.by_lines,
            ),
        )
        file_id = int(row[0][0])
        path_words = " ".join(terms(file.path))
        for chunk, symbols in file.chunks:
            self._db.execute(
                "INSERT INTO chunks (file_id, start_line, end_line, start_byte, end_byte, scope, symbols, text)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    file_id,
                    chunk.start_line,
                    chunk.end_line,
                    chunk.start_byte,
                    chunk.end_byte,
                    chunk.scope,
                    "\n".join(symbols),
                    chunk.text,
                ),
            )
            chunk_id = self._db.last_insert_rowid()
            symbol_words = " ".join(terms(" ".join((chunk.scope, *symbols))))
            self._db.execute(
                "INSERT INTO words (rowid, body, path, symbols) VALUES (?, ?, ?, ?)",
                (chunk_id, " ".join(terms(chunk.text)), path_words, symbol_words),
            )
            self._db.execute("INSERT INTO pending VALUES (?)", (chunk_id,))

    def touch(self, rows: Iterable[tuple[int, int, int, int]]) -> None:
        """Note (size, mtime_ns, seen_ns, file id) of files whose content is as it was.

        Where that can't be written at once, they are only read again the next time.
        """
        self._db.set_busy_timeout(0)
        try:
            with transaction(self._db):
                self._db.executemany("UPDATE files SET size = ?, mtime_ns = ?, seen_ns = ? WHERE id = ?", rows)
        except (apsw.BusyError, apsw.FullError, apsw.IOError, apsw.ReadOnlyError) as error:
            _log.info("times of files are not noted: %s", error)
        finally:
            self._db.set_busy_timeout(database.BUSY_MS)

    def delete(self, paths: Sequence[str]) -> None:
        """Forget these files in every table."""
        with transaction(self._db):
            self._delete_chunks(paths)
            self._db.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in paths])

    def _delete_chunks(self, paths: Sequence[str]) -> None:
        ids = [
            (chunk_id,)
            for path in paths
            for (chunk_id,) in self._db.execute(
                "SELECT chunks.id FROM chunks JOIN files ON files.id = file_id WHERE path = ?", (path,)
            )
        ]
        for table, key in (("words", "rowid"), ("vectors", "rowid"), ("pending", "chunk_id"), ("chunks", "id")):
            self._db.executemany(f"DELETE FROM {table} WHERE {key} = ?", ids)
        if ids:
            dead = int(database.read_meta(self._db).get("dead_vectors", "0")) + len(ids)
            database.write_meta(self._db, dead_vectors=str(dead))

    def finish(self) -> None:
        """Mark the index as complete and give back free space."""
        meta = database.read_meta(self._db)
        if int(meta.get("dead_vectors", "0")) > _COMPACT_AFTER:
            with transaction(self._db):
                self._rebuild_vectors()
                self._db.execute("INSERT INTO words (words) VALUES ('optimize')")
                database.write_meta(self._db, dead_vectors="0")
            self._db.execute("PRAGMA incremental_vacuum").fetchall()
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if meta.get("complete") != "1":
            database.write_meta(self._db, complete="1")

    def _rebuild_vectors(self) -> None:
        """Copy the vectors through a plain table: vec0 keeps the room of deleted ones."""
        self._db.execute("CREATE TEMP TABLE kept AS SELECT rowid AS id, embedding FROM vectors")
        database.create_vectors(self._db, self._embedder.dimension)
        self._db.execute("INSERT INTO vectors (rowid, embedding) SELECT id, vec_int8(embedding) FROM kept")
        self._db.execute("DROP TABLE kept")


@dataclass(frozen=True, slots=True)
class Counts:
    """What an index holds: files with chunks, chunks, and how many of these have no vector yet."""

    languages: dict[str, int]
    """Files by language; "" is an unknown one."""
    by_lines: dict[str, int]
    """Of them those that were cut without a grammar."""
    chunks: int
    pending: int

    @property
    def files(self) -> int:
        return sum(self.languages.values())


def counts(db: apsw.Connection) -> Counts:
    languages: dict[str, int] = {}
    by_lines: dict[str, int] = {}
    for language, files, cut in database.rows(
        db, "SELECT language, count(*), sum(by_lines) FROM files WHERE skipped = '' GROUP BY language ORDER BY language"
    ):
        languages[language] = files
        if cut:
            by_lines[language] = cut
    chunks, pending = (database.rows(db, f"SELECT count(*) FROM {table}")[0][0] for table in ("chunks", "pending"))
    return Counts(languages, by_lines, chunks, pending)


VECTOR_SCALE = 127.0
"""What a length of 1 is stored as."""


def as_int8(vectors: NDArray[np.float32]) -> NDArray[np.int8]:
    """Rows of length 1 as whole numbers, all to the same scale, so that distances give the order of cosines."""
    import numpy as np

    scaled: NDArray[np.int8] = np.rint(vectors * VECTOR_SCALE).astype(np.int8)
    return scaled
