"""Vectors by what was embedded, in one file for all indexes of a user.

What was embedded once, on another branch, in another worktree or before a rename, costs a look-up when it comes again.
Nothing depends on the file: one that is damaged is made anew, one that can't be used is done without.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import apsw

from kvd.recall.faults import DAMAGE, MET_DAMAGE
from kvd.regular import check_database
from kvd.sqlite import close, transaction

CAP_BYTES = 256_000_000
"""For the file with its log."""

_log = logging.getLogger(__name__)

_VERSION = 1
_KEY_BYTES = 16
_LOG_BYTES = 8_000_000
_BUSY_MS = 2_000
_DAY_S = 86_400
_EVICTED_SHARE = 5
"""A full cache gives up one vector in so many, those unused for longest."""

_SCHEMA = """
CREATE TABLE vectors (key BLOB PRIMARY KEY, day INTEGER NOT NULL, vector BLOB NOT NULL) STRICT, WITHOUT ROWID;
"""


def vector_key(embedder: str, text: str) -> bytes:
    """The content address of the vector that the embedder with this label makes of `text`."""
    digest = hashlib.blake2b(embedder.encode() + b"\0", digest_size=_KEY_BYTES)
    digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.digest()


class VectorCache:
    """Use in one thread, as a context manager. The file is opened when first needed."""

    def __init__(self, path: Path, cap_bytes: int = CAP_BYTES) -> None:
        self._path, self._cap = path, cap_bytes
        self._db: apsw.Connection | None = None
        self._unusable = False

    def __enter__(self) -> VectorCache:
        return self

    def __exit__(self, *_: object) -> None:
        if self._db is not None:
            close(self._db)
            self._db = None

    def get(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """The vectors that are there; notes that they were used today."""
        db = self._opened()
        if db is None or not keys:
            return {}
        today = _today()
        try:
            found = list(
                db.execute(
                    "SELECT vectors.key, vector, day FROM json_each(?) JOIN vectors ON vectors.key = unhex(value)",
                    (json.dumps([key.hex() for key in keys]),),
                )
            )
            stale = [(today, key) for key, _, day in found if day != today]
            if stale:
                with transaction(db):
                    db.executemany("UPDATE vectors SET day = ? WHERE key = ?", stale)
        except (apsw.Error, *DAMAGE) as error:
            self._give_up(error)
            return {}
        # In a damaged file anything may stand in a column.
        return {bytes(key): vector for key, vector, _ in found if isinstance(vector, bytes)}

    def put(self, vectors: Mapping[bytes, bytes]) -> None:
        """Keep these; what was unused for longest leaves where the cap would be passed."""
        db = self._opened()
        if db is None:
            return
        today = _today()
        try:
            with transaction(db):
                self._make_room(db)
                db.executemany(
                    "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)",
                    [(key, today, vector) for key, vector in vectors.items()],
                )
        except apsw.Error as error:
            self._give_up(error)

    def _make_room(self, db: apsw.Connection) -> None:
        pages, free, size = (db.pragma(name) for name in ("page_count", "freelist_count", "page_size"))
        assert isinstance(pages, int)
        assert isinstance(free, int)
        assert isinstance(size, int)
        if (pages - free) * size + 2 * _LOG_BYTES <= self._cap:
            return
        db.execute(
            "DELETE FROM vectors WHERE key IN (SELECT key FROM vectors ORDER BY day LIMIT"
            f" (SELECT 1 + count(*) / {_EVICTED_SHARE} FROM vectors))"
        )

    def _opened(self) -> apsw.Connection | None:
        if self._db is None and not self._unusable:
            try:
                self._db = _open(self._path)
            except (apsw.Error, OSError) as error:
                self._give_up(error)
        return self._db

    def _give_up(self, error: Exception) -> None:
        """Nothing more is read or written by this object. A damaged file is gone when the next one comes."""
        _log.warning("no cached vectors: %s", error)
        self._unusable = True
        if self._db is not None:
            self._db.close()
            self._db = None
        if isinstance(error, MET_DAMAGE):
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)


def _open(path: Path) -> apsw.Connection:
    """Raises `apsw.Error` or `OSError` for a file that can't be used."""
    check_database(path)
    # Made before SQLite opens it, so that it (and its log, which takes over the mode) is never readable by others.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        db.set_busy_timeout(_BUSY_MS)
        db.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        db.execute("PRAGMA synchronous = NORMAL")
        version = db.pragma("user_version")
        if version == 0:
            db.execute("PRAGMA journal_mode = WAL")
            with transaction(db):
                # Another process may have made it since.
                if db.pragma("user_version") == 0:
                    db.execute(_SCHEMA)
                    db.execute(f"PRAGMA user_version = {_VERSION}")
        elif version != _VERSION:
            raise OSError(f"{path} is of another kvd")
    except BaseException:
        db.close()
        raise
    return db


def _today() -> int:
    return int(time.time()) // _DAY_S
