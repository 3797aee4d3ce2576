"""The cold tier: encoded KV blocks in one SQLite file, under their content addresses.

One process writes (the daemon); engine children read through connections of their own (WAL). A row carries
everything that is needed to check it, so that a damaged one is skipped, never used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from kvd.errors import StoreError

_SCHEMA_VERSION = 1
_SCHEMA = """
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
_COLUMNS = {"key", "parent", "fingerprint", "tokens", "size", "used_at", "data"}

DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError)
"""What SQLite says of a file that is damaged, or whose tables are not those of `_SCHEMA`."""

_BATCH = 200
"""Keys in one statement: below SQLite's oldest limit of 999 variables."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """One encoded block. `data` is the codec's frame, with its own header and checksum."""

    key: bytes
    parent: bytes
    fingerprint: bytes
    tokens: int
    data: bytes


class BlockStore:
    """Raises `StoreError` when the file is newer than this program or can't be opened.

    A writer that finds the file damaged sets it aside and starts a new one: blocks are a cache. A reader of a
    file that does not exist (nothing stored yet) sees no blocks.
    """

    def __init__(self, path: Path, readonly: bool = False) -> None:
        self.path = path
        self._readonly = readonly
        self._inode = 0
        self._db: apsw.Connection | None = None
        self.rebuilt = ""
        """Why the file was made anew, or ""."""
        if readonly:
            self._follow_file()
        else:
            self._open_writer()

    def _open_reader(self) -> None:
        if not self.path.exists():
            return
        db = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        db.set_busy_timeout(2_000)
        self._db = db

    def _follow_file(self) -> None:
        """Open the file that is there now: the writer may have made it since, or replaced a damaged one."""
        inode = self._file_inode()
        if inode != self._inode:
            self.close()
            self._open_reader()
            self._inode = inode

    def _open_writer(self) -> None:
        try:
            self._db = self._connect()
        except DAMAGE as error:
            self.start_anew(error)
        except apsw.Error as error:
            raise StoreError(f"can't open {self.path}: {error}", hint="check the disk, or remove the file") from error
        self._inode = self._file_inode()

    def start_anew(self, reason: object) -> None:
        """Remove a damaged file and make a new one: blocks are a cache."""
        self.close()
        self.rebuilt = f"{self.path.name} was damaged ({reason})"
        for suffix in ("-wal", "-shm", ""):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        self._db = self._connect()
        self._inode = self._file_inode()

    @property
    def is_current(self) -> bool:
        """Is the open file still the one at `path`? Somebody may have removed or replaced it."""
        return self._db is not None and self._file_inode() == self._inode

    def _file_inode(self) -> int:
        try:
            return self.path.stat().st_ino
        except OSError:
            return 0

    def _connect(self) -> apsw.Connection:
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        if fresh:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        db = apsw.Connection(str(self.path))
        try:
            db.set_busy_timeout(10_000)
            if fresh:
                # Works only before the first table is made.
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._refuse_newer(db)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            self._migrate(db)
        except BaseException:
            db.close()
            raise
        return db

    def _refuse_newer(self, db: apsw.Connection) -> None:
        version = db.pragma("user_version")
        if version > _SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} was written by a newer kvd (format {version})",
                hint="upgrade kvd, or remove the file",
            )

    def _migrate(self, db: apsw.Connection) -> None:
        if db.pragma("user_version") == 0:
            db.execute("DROP TABLE IF EXISTS blocks")
            with db:
                db.execute(_SCHEMA)
                db.pragma("user_version", _SCHEMA_VERSION)
        found = {row[1] for row in db.execute("PRAGMA table_info(blocks)")}
        if found != _COLUMNS:
            raise apsw.CorruptError(f"the table's columns are {sorted(map(str, found))}")
        db.execute("SELECT key FROM blocks ORDER BY used_at LIMIT 1").fetchall()

    def _writer(self) -> apsw.Connection:
        if self._db is None or self._readonly:
            raise StoreError("the KV store is open for reading only")
        return self._db

    def get(self, keys: Sequence[bytes], fingerprint: bytes) -> dict[bytes, bytes]:
        """The frames of those `keys` that are stored under `fingerprint`. Unreadable pages count as missing."""
        if self._readonly:
            self._follow_file()
        if self._db is None:
            return {}
        found: dict[bytes, bytes] = {}
        for batch in _batches(keys):
            marks = ",".join("?" * len(batch))
            query = f"SELECT key, data FROM blocks WHERE fingerprint = ? AND key IN ({marks})"
            try:
                for key, data in self._db.execute(query, (fingerprint, *batch)):
                    found[key] = data
            except apsw.Error:
                continue
        return found

    def put(self, blocks: Sequence[StoredBlock]) -> None:
        """Store or replace `blocks` in one transaction."""
        now = time.time()
        db = self._writer()
        with db:
            db.executemany(
                "INSERT OR REPLACE INTO blocks (key, parent, fingerprint, tokens, size, used_at, data)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(b.key, b.parent, b.fingerprint, b.tokens, len(b.data), now, b.data) for b in blocks],
            )

    def touch(self, keys: Sequence[bytes]) -> None:
        """Mark `keys` as used now."""
        now = time.time()
        db = self._writer()
        with db:
            db.executemany("UPDATE blocks SET used_at = ? WHERE key = ?", [(now, key) for key in keys])

    def drop(self, keys: Sequence[bytes]) -> None:
        db = self._writer()
        with db:
            db.executemany("DELETE FROM blocks WHERE key = ?", [(key,) for key in keys])

    def gc(self, cap_bytes: int) -> int:
        """Bring the file to at most `cap_bytes`, least recently used blocks first; the bytes given back.

        The cap is on the whole file, not on its payload. Deletion goes on until the pages in use fit, then the
        free pages are returned to the file system.
        """
        db = self._writer()
        before = self.file_bytes()
        page_size = db.pragma("page_size")

        def in_use() -> int:
            return int((db.pragma("page_count") - db.pragma("freelist_count")) * page_size)

        while (excess := in_use() - cap_bytes) > 0:
            victims = list(_oldest(db, excess))
            if not victims:
                break
            self.drop(victims)
        db.execute("PRAGMA incremental_vacuum").fetchall()
        self.checkpoint()
        return max(0, before - self.file_bytes())

    def checkpoint(self) -> None:
        """Move what is in the write-ahead log to the file, and empty the log."""
        self._writer().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def file_bytes(self) -> int:
        """Bytes of the file and its write-ahead log on disk."""
        return sum(file.stat().st_size for file in (self.path, Path(f"{self.path}-wal")) if file.exists())

    def stats(self) -> dict[str, Any]:
        """`{"blocks", "tokens", "payload_bytes", "file_bytes"}`."""
        if self._db is None:
            return {"blocks": 0, "tokens": 0, "payload_bytes": 0, "file_bytes": 0}
        row = self._db.execute("SELECT count(*), total(tokens), total(size) FROM blocks").get
        blocks, tokens, size = row if isinstance(row, tuple) else (0, 0, 0)
        return {
            "blocks": int(blocks),
            "tokens": int(tokens),
            "payload_bytes": int(size),
            "file_bytes": self.file_bytes(),
        }

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _batches(keys: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    return (keys[start : start + _BATCH] for start in range(0, len(keys), _BATCH))


def _oldest(db: apsw.Connection, excess: int) -> Iterator[bytes]:
    """Keys of the least recently used blocks whose frames hold at least `excess` bytes together."""
    taken = 0
    rows: list[tuple[bytes, int]] = db.execute("SELECT key, size FROM blocks ORDER BY used_at LIMIT 1000").fetchall()  # type: ignore[assignment]  # STRICT columns have these types
    for key, size in rows:
        if taken >= excess:
            return
        taken += size
        yield key
