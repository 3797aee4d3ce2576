"""Room in the cold store's files: the cap holds at any time for all that they have on disk.

What a transaction writes is in the write-ahead log first and in the file later, for a while in both. So the file
stays below the cap by what the log may take. Room is made before a write, free pages are given back in steps, and
between steps the log is emptied. A reader that does not end keeps the log from being emptied: then nothing is
written that would break the cap.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import apsw

from kvd.errors import StoreError
from kvd.kv.eviction import Evicted, evict
from kvd.sqlite import transaction

_FRAME_HEADER = 24
_INDEX_STEP = 32 << 10
"""The log's index grows by so much for each 4,096 pages of log, the first at once."""
_MOST_LOG = 16 << 20
_ROW_PAGES = 6
"""Pages of tables and indexes that one row's writing or deleting may change, besides those of its frame."""
_EMPTY_PAGES = 16
"""What a file without blocks has, and some to spare for inner pages of its trees."""
_SLACK = 32
_MOST_SLACK = 16 << 20
"""A full store gives up one part in so many at once, at most so many bytes, so that not every write has to."""
_BATCH = 256
"""Most blocks that leave in one transaction. SQLite searches the whole list of free pages for each page that it gives
back, so that list must stay short."""

_CHECKPOINT_MS = 1_000
BUSY_MS = 10_000


class Space:
    """The pages and files of one open store; `evicted` counts who had to leave."""

    def __init__(self, db: apsw.Connection, path: Path, since: float) -> None:
        self._db, self._path, self._since = db, path, since
        self._page: int = db.pragma("page_size")
        # As of a cap that the file just keeps, until a write says what it is.
        self._log_share = min(_MOST_LOG, path.stat().st_size // 8)
        self.evicted = Evicted()

    def make_room(self, sizes: Sequence[int], cap: int, spare: Collection[bytes]) -> None:
        """Evict until frames of so many bytes fit, but nothing in `spare`; at its end the file may take them.

        Raises `StoreError` when they don't: larger than the cap, or a reader holds what has to go.
        """
        growth = sum(size // self._page + 2 for size in sizes) * self._page
        log = self._logged(growth, len(sizes))
        limit = self._file_limit(cap, log)
        goal = limit - growth
        if goal < _EMPTY_PAGES * self._page:
            raise StoreError(f"{sum(sizes)} bytes at once are too much for a cap of {cap}")
        if self._in_use() > goal:
            self._evict_to(goal - min(limit // _SLACK, _MOST_SLACK), spare, limit)
        self._give_back(limit)
        self.trim_log(max(self._log_share - log, 0))
        if not self._fits(growth, log, cap) and not (self.checkpoint() and self._fits(growth, log, cap)):
            raise StoreError("no room: a reader holds the log, or all that is stored is needed")

    def _fits(self, growth: int, log: int, cap: int) -> bool:
        """Would the files stay below `cap` while they take `growth` bytes of frames and `log` bytes of log?"""
        file = max(self._path.stat().st_size, self._in_use() + growth)
        return file + self._with_index(self._log_bytes() + log) <= cap

    def shrink(self, cap: int) -> None:
        """Bring the files under `cap` and give all free pages back to the file system, as far as readers let it."""
        limit = self._file_limit(cap, 0)
        if self._in_use() > limit:
            self._evict_to(limit, (), 0)
        self._give_back(0)
        self.checkpoint()

    def trim_log(self, most: int | None = None) -> bool:
        """Empty the log if it has more than `most` bytes (half of its share); is it as short now?"""
        most = self._log_share // 2 if most is None else most
        return self._log_bytes() <= most or self.checkpoint()

    def checkpoint(self) -> bool:
        """Move what is in the log to the file, and empty the log; false if a reader still needs it."""
        self._db.set_busy_timeout(_CHECKPOINT_MS)
        try:
            busy = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]
        finally:
            self._db.set_busy_timeout(BUSY_MS)
        return not busy

    def _logged(self, growth: int, rows: int) -> int:
        """Most bytes of log for rows whose frames take `growth` bytes of file."""
        pages = growth // self._page
        # Each new page may have its entry in another page of the pointer map.
        maps = min(pages, self._pages() // (self._page // 5) + 1)
        return (pages + maps + rows * _ROW_PAGES) * (self._page + _FRAME_HEADER)

    def _with_index(self, log: int) -> int:
        """Bytes of a log and of its index, which never gets smaller while the file is open."""
        return log + max(_size(f"{self._path}-shm"), _INDEX_STEP * (1 + log // (self._page << 12)))

    def _file_limit(self, cap: int, log: int) -> int:
        """Bytes that the file itself may have when a transaction of `log` bytes comes."""
        self._log_share = min(_MOST_LOG, cap // 8)
        return cap - self._with_index(max(self._log_share, log))

    def _evict_to(self, goal: int, spare: Collection[bytes], limit: int) -> None:
        """Delete in batches of half the log's share until the pages in use fit, or nothing more can go.

        Between batches, what the file has above `limit` is given back.
        """
        most = min(_BATCH, max(1, self._log_share // (2 * _ROW_PAGES * self._page)))
        while (excess := self._in_use() - goal) > 0 and self.trim_log():
            with transaction(self._db):
                gone = evict(self._db, self._since, excess, most, spare)
            self.evicted.cap += gone.cap
            self.evicted.foreign += gone.foreign
            if not gone.cap + gone.foreign:
                break
            self._give_back(limit)

    def _give_back(self, limit: int) -> None:
        """Cut free pages off the file until it has at most `limit` bytes, or none is free."""
        if self._pages() * self._page <= limit:
            return
        # A page that moves to a free place takes along the one that points to it, and entries of the pointer map.
        step = max(1, self._log_share // (8 * self._page))
        while (excess := self._pages() - limit // self._page) > 0 and self._free_pages() and self.trim_log():
            self._db.execute(f"PRAGMA incremental_vacuum({min(step, excess)})").fetchall()
        self.checkpoint()

    def _pages(self) -> int:
        return int(self._db.pragma("page_count"))

    def _free_pages(self) -> int:
        return int(self._db.pragma("freelist_count"))

    def _in_use(self) -> int:
        return (self._pages() - self._free_pages()) * self._page

    def _log_bytes(self) -> int:
        return _size(f"{self._path}-wal")


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except FileNotFoundError:
        return 0
