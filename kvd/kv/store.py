"""The cold tier: encoded KV blocks in one SQLite file, under their content addresses.

One process writes (the daemon); engine children read through connections of their own (WAL). A row carries
everything that is needed to check it, so that a damaged one is skipped, never used. `kvd.kv.eviction` says which
blocks leave, `kvd.kv.space` when.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from kvd.errors import StoreError
from kvd.kv.eviction import IN_USE, Evicted, add_timing, drop_with_rest, mark_models, use
from kvd.kv.schema import SCHEMA_VERSION, prepare
from kvd.kv.space import BUSY_MS, Space
from kvd.paths import bytes_on_disk
from kvd.regular import check_database
from kvd.sqlite import close, transaction

DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.ConstraintError)
"""What SQLite says of a file that is damaged, or whose tables are not those of `kvd.kv.schema`."""

__all__ = ["DAMAGE", "BlockStore", "Evicted", "StoredBlock"]

_BATCH = 200
"""Keys in one statement: below SQLite's oldest limit of 999 variables."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """One encoded block. `data` is the codec's frame, with its own header and checksum.

    `parent` is the key of the block that it continues. `seconds` is what its prefill took (0.0: not known).
    """

    key: bytes
    parent: bytes
    fingerprint: bytes
    tokens: int
    data: bytes
    seconds: float = 0.0


class BlockStore:
    """Raises `StoreError` when the file is newer than this program or can't be opened.

    A writer that finds the file damaged sets it aside and starts a new one: blocks are a cache. A reader of a
    file that does not exist (nothing stored yet) or can't be opened sees no blocks. Models used at `since` (in
    seconds of `clock`; else when this is opened) or later count as current, and so does the one that was used last.
    """

    def __init__(
        self,
        path: Path,
        readonly: bool = False,
        since: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self._readonly, self._clock = readonly, clock
        self._since = clock() if since is None else since
        self._inode = self._log_inode = 0
        self._db: apsw.Connection | None = None
        self._space: Space | None = None
        self.rebuilt = ""
        """Why the file was made anew, or ""."""
        if readonly:
            self._follow_file()
        else:
            self._open_writer()

    def _open_reader(self) -> None:
        if not self.path.exists():
            return
        with suppress(apsw.Error, OSError):
            check_database(self.path)
            db = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
            db.set_busy_timeout(2_000)
            self._db = db

    def _now(self) -> float:
        """Not before the start, also where the clock was set back: what is used now is in use."""
        return max(self._clock(), self._since)

    def _follow_file(self) -> None:
        """Open the file that is there now: the writer may have made it since, or replaced a damaged one."""
        inode = self._file_inode()
        if inode != self._inode:
            self.close()
            self._open_reader()
            self._inode = inode if self._db is not None else 0

    def _open_writer(self) -> None:
        try:
            try:
                self._connect()
            except DAMAGE as error:
                self.start_anew(error)
        except (apsw.Error, OSError) as error:
            file, reason = getattr(error, "filename", None) or self.path, getattr(error, "strerror", None) or error
            raise StoreError(f"can't open {file}: {reason}", hint="check the disk, or remove the file") from error

    def start_anew(self, reason: object) -> None:
        """Remove a damaged file and make a new one: blocks are a cache."""
        self.remove()
        self.rebuilt = f"{self.path.name} was damaged ({reason})"
        self._connect()

    def remove(self) -> None:
        """Close the file and delete it with all that is stored."""
        # A last try to empty the log may fail; nobody needs it.
        with suppress(apsw.Error):
            self.close()
        for suffix in ("-wal", ""):
            # A reader that has it open would keep its room. It looks whether the file is still there before it reads.
            with suppress(OSError):
                os.truncate(f"{self.path}{suffix}", 0)
        for suffix in ("-wal", "-shm", ""):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    @property
    def is_current(self) -> bool:
        """Are the open file and its log still those at `path`? Somebody may have removed or replaced them.

        SQLite itself takes the log away when a reader opens a file that was emptied; what is written to the log that
        is gone nobody would see.
        """
        opened = (self._inode, self._log_inode)
        return self._db is not None and (self._file_inode(), self._file_inode("-wal")) == opened

    def _file_inode(self, suffix: str = "") -> int:
        try:
            return os.stat(f"{self.path}{suffix}").st_ino
        except OSError:
            return 0

    def _connect(self) -> None:
        check_database(self.path)
        # Somebody may have removed the whole folder.
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        if fresh:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        db = apsw.Connection(str(self.path))
        try:
            db.set_busy_timeout(BUSY_MS)
            if fresh:
                # Works only before the first table is made.
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._refuse_newer(db)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            prepare(db)
            self._space = Space(db, self.path, self._since)
        except BaseException:
            db.close()
            raise
        self._db = db
        self._inode, self._log_inode = self._file_inode(), self._file_inode("-wal")

    def _refuse_newer(self, db: apsw.Connection) -> None:
        version = db.pragma("user_version")
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} was written by a newer kvd (format {version})",
                hint="upgrade kvd, or remove the file",
            )

    def _writer(self) -> tuple[apsw.Connection, Space]:
        if self._db is None or self._space is None:
            raise StoreError("the KV store is open for reading only")
        return self._db, self._space

    def _with_short_log(self) -> apsw.Connection:
        db, space = self._writer()
        if not space.trim_log():
            raise StoreError(f"{self.path} is not changed: a reader holds the log")
        return db

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

    def put(self, blocks: Sequence[StoredBlock], cap_bytes: int | None = None) -> None:
        """Store or replace `blocks` in one transaction. Writing counts as a use.

        With a cap, room is made first: what is on disk stays below it. Raises `StoreError` when they can't fit.
        """
        db, space = self._writer()
        now = self._now()
        space.trim_log()
        if cap_bytes is not None:
            with transaction(db):
                # Before room is made, so that a model's own blocks are not taken for another's.
                mark_models(db, {block.fingerprint for block in blocks}, now, self._since)
            needed = {key for block in blocks for key in (block.parent, block.key)}
            space.make_room([len(block.data) for block in blocks], cap_bytes, needed)
        with transaction(db):
            db.executemany(
                "INSERT INTO blocks (key, parent, fingerprint, tokens, size, written_at, data)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE"
                " SET size = excluded.size, written_at = excluded.written_at, data = excluded.data",
                [(b.key, b.parent, b.fingerprint, b.tokens, len(b.data), now, b.data) for b in blocks],
            )
            use(db, [block.key for block in blocks], now)
            for block in blocks:
                if block.seconds > 0:
                    add_timing(db, block.fingerprint, block.tokens, block.seconds)

    def touch(self, keys: Sequence[bytes]) -> None:
        """Count a use of the blocks at `keys`, now. Raises `StoreError` while a reader holds a log that is too long."""
        db = self._with_short_log()
        with transaction(db):
            use(db, keys, self._now())

    def drop(self, keys: Sequence[bytes]) -> None:
        """Delete blocks, and with them those that continue them. Raises as `touch` does."""
        db = self._with_short_log()
        with transaction(db):
            drop_with_rest(db, keys)

    def erase(self, keys: Sequence[bytes]) -> None:
        """`drop`, and overwrite what is deleted, in the log too unless a reader holds it."""
        db, space = self._writer()
        db.execute("PRAGMA secure_delete = ON")
        try:
            self.drop(keys)
        finally:
            db.execute("PRAGMA secure_delete = OFF")
        space.checkpoint()

    def gc(self, cap_bytes: int) -> int:
        """Bring what is on disk to at most `cap_bytes`, and give back all free pages; the bytes given back."""
        before = self.file_bytes()
        self._writer()[1].shrink(cap_bytes)
        return max(0, before - self.file_bytes())

    def take_evicted(self) -> Evicted:
        """How many blocks had to leave since the last call."""
        space = self._writer()[1]
        evicted, space.evicted = space.evicted, Evicted()
        return evicted

    def checkpoint(self) -> None:
        """Move what is in the write-ahead log to the file, and empty the log."""
        self._writer()[1].checkpoint()

    def file_bytes(self) -> int:
        """Bytes on disk, with the write-ahead log and its index."""
        return bytes_on_disk(self.path)

    def stats(self) -> dict[str, Any]:
        """`{"blocks", "tokens", "payload_bytes", "file_bytes", "current", "other"}`.

        `current` and `other` have `models`, `blocks`, `tokens` and `bytes` of the models in use and of the others.
        A file that no writer has opened since an older version wrote it has only `file_bytes`.
        """
        parts = {name: {"models": 0, "blocks": 0, "tokens": 0, "bytes": 0} for name in ("current", "other")}
        if self._db is not None:
            if self._db.pragma("user_version") != SCHEMA_VERSION:
                return {"file_bytes": self.file_bytes()}
            for current, *figures in self._db.execute(
                f"SELECT {IN_USE}, blocks, tokens, size FROM models WHERE blocks > 0", (self._since,)
            ):
                part = parts["current" if current else "other"]
                for name, value in zip(part, (1, *figures), strict=True):
                    part[name] += int(value)
        blocks, tokens, size = (sum(part[name] for part in parts.values()) for name in ("blocks", "tokens", "bytes"))
        return {"blocks": blocks, "tokens": tokens, "payload_bytes": size, "file_bytes": self.file_bytes(), **parts}

    def close(self) -> None:
        db, self._db, self._space = self._db, None, None
        if db is not None:
            close(db)


def _batches(keys: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    return (keys[start : start + _BATCH] for start in range(0, len(keys), _BATCH))
