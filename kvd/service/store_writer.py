"""The only writer of the cold KV store: a thread with a queue, so that nobody waits for the disk.

Blocks are a cache. Whatever keeps them from the disk (no space, a locked or damaged file, a full queue) is
logged and counted, and costs a later question some prefill; it is never an error of the request at hand.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from kvd.errors import KvdError, StoreError
from kvd.kv.store import DAMAGE, BlockStore, Evicted, StoredBlock

_log = logging.getLogger(__name__)

MAX_PENDING = 256 << 20

_Job = Callable[[BlockStore], Any]


@dataclass(frozen=True, slots=True)
class _Task:
    job: _Job
    blocks: int
    size: int
    future: Future[Any]


@dataclass(frozen=True, slots=True)
class Cleanup:
    """Bytes given back, and the blocks that left for it: to keep the cap, of models in use and of others ("foreign").

    `damaged` are those dropped since the last cleanup, `full_disk` those that went with the file for want of room.
    """

    freed_bytes: int
    cap: int
    foreign: int
    damaged: int
    full_disk: int = 0


class StoreWriter:
    """All methods may be called from any thread; `put`, `touch` and `drop` return at once."""

    def __init__(self, path: Path, cap: Callable[[], int], max_pending: int = MAX_PENDING) -> None:
        """`cap` gives the limit in bytes of all that is on disk; it is asked again before every write."""
        self.path = path
        self.since = time.time()
        """Models used from then on are in use."""
        self._cap = cap
        self._last_cap: int | None = None
        self._max_pending = max_pending
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending_bytes = 0
        names = ("written_blocks", "lost_blocks", "dropped_damaged", "evicted_cap", "evicted_foreign")
        self._counts = dict.fromkeys(names, 0)
        self._damaged_before = 0
        self._store: BlockStore | None = None
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def put(self, blocks: list[StoredBlock]) -> None:
        """Make room for `blocks` under the cap, then store them."""
        size = sum(len(block.data) for block in blocks)
        with self._lock:
            full = self._pending_bytes + size > self._max_pending
        if full:
            self._lose(len(blocks), "the disk is too slow")
            return

        def job(store: BlockStore) -> None:
            store.put(blocks, self._cap_or_none())
            self._count("written_blocks", len(blocks))

        self._submit(job, len(blocks), size)

    def touch(self, keys: list[bytes]) -> None:
        """Count a use of blocks, now."""
        self._submit(lambda store: store.touch(keys))

    def drop(self, keys: list[bytes]) -> None:
        """Delete blocks that a reader found to be corrupt."""
        self._count("dropped_damaged", len(keys))
        self._submit(lambda store: store.drop(keys))

    def discard(self, keys: list[bytes]) -> None:
        """Delete blocks that nobody needs any more, and with them those that continue them."""
        if keys:
            self._submit(lambda store: store.drop(keys))

    def erase(self, keys: list[bytes]) -> None:
        """`discard`, and overwrite them on disk."""
        if keys:
            self._submit(lambda store: store.erase(keys))

    def gc(self, timeout: float | None = None) -> Cleanup:
        """Bring the store under its cap and give back what is free. Raises `StoreError` when that is impossible.

        Where the disk has no room even for that, all that is stored goes: no other way leads out.
        """

        def job(store: BlockStore) -> Cleanup:
            try:
                freed = store.gc(self._cap_bytes())
            except apsw.FullError as error:
                return self._remove_store(store, error)
            evicted = self._note_evicted(store)
            with self._lock:
                damaged = self._counts["dropped_damaged"]
            damaged, self._damaged_before = damaged - self._damaged_before, damaged
            return Cleanup(freed, evicted.cap, evicted.foreign, damaged)

        try:
            cleanup: Cleanup = self._submit(job).result(timeout)
        except FutureTimeoutError:
            raise StoreError("the KV store is busy", hint="try again later") from None
        except (apsw.Error, OSError) as error:
            raise StoreError(f"can't clean up {self.path}: {error}", hint="check the disk") from error
        return cleanup

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything handed over so far is on disk or lost; false when that takes too long."""
        done: Future[Any] = Future()
        self._queue.put(_Task(lambda store: None, 0, 0, done))
        try:
            done.result(timeout)
        except FutureTimeoutError:
            return False
        except Exception:
            # The store can't be opened: then nothing is left to wait for.
            return True
        return True

    def close(self, timeout: float | None = None) -> None:
        """Write what is pending, then close the file. What comes later is ignored."""
        self._queue.put(None)
        self._thread.join(timeout)

    def counts(self) -> dict[str, int]:
        """`pending_bytes`, and since the start:

        `written_blocks`, `lost_blocks` (not written), `dropped_damaged` (found damaged when read), and what left to
        keep the cap, `evicted_cap` of models in use, `evicted_foreign` of others.
        """
        with self._lock:
            return {"pending_bytes": self._pending_bytes, **self._counts}

    def _submit(self, job: _Job, blocks: int = 0, size: int = 0) -> Future[Any]:
        task = _Task(job, blocks, size, Future())
        with self._lock:
            self._pending_bytes += size
        self._queue.put(task)
        return task.future

    def _count(self, name: str, by: int) -> None:
        with self._lock:
            self._counts[name] += by

    def _lose(self, blocks: int, why: object) -> None:
        self._count("lost_blocks", blocks)
        _log.warning("KV store: %d blocks not written: %s", blocks, why)

    def _cap_bytes(self) -> int:
        try:
            self._last_cap = self._cap()
        except KvdError:
            # A broken settings file: the last limit that could be read goes on.
            if self._last_cap is None:
                raise
        return self._last_cap

    def _cap_or_none(self) -> int | None:
        try:
            return self._cap_bytes()
        except KvdError:
            # The blocks are written; the next write that can read the settings makes good for it.
            return None

    def _note_evicted(self, store: BlockStore) -> Evicted:
        evicted = store.take_evicted()
        if evicted.cap or evicted.foreign:
            self._count("evicted_cap", evicted.cap)
            self._count("evicted_foreign", evicted.foreign)
            _log.info("KV store: %d blocks left to keep the cap, %d of other models", evicted.cap, evicted.foreign)
        return evicted

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            try:
                task.future.set_result(self._done(task.job))
            except Exception as error:
                self._failed(task, error)
            finally:
                with self._lock:
                    self._pending_bytes -= task.size
        self._close_store()

    def _done(self, job: _Job) -> Any:
        store = self._opened()
        try:
            return job(store)
        finally:
            if self._store is store:
                self._note_evicted(store)

    def _failed(self, task: _Task, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}"
        if task.blocks:
            self._lose(task.blocks, why)
        elif not isinstance(error, KvdError):
            _log.warning("KV store: %s", why)
        task.future.set_exception(error)
        if isinstance(error, DAMAGE) and self._store is not None:
            self._start_anew(self._store, error)
        elif isinstance(error, apsw.IOError):
            self._close_store()

    def _remove_store(self, store: BlockStore, reason: object) -> Cleanup:
        freed, blocks = store.file_bytes(), store.stats()["blocks"]
        self._store = None
        store.remove()
        _log.warning("KV store: %s; removed all %d blocks", reason, blocks)
        return Cleanup(freed, 0, 0, 0, blocks)

    def _start_anew(self, store: BlockStore, error: Exception) -> None:
        try:
            store.start_anew(error)
            _log.warning("KV store: %s; started a new one", store.rebuilt)
        except (apsw.Error, OSError):
            self._close_store()

    def _opened(self) -> BlockStore:
        if self._store is not None and not self._store.is_current:
            _log.warning("KV store: %s was removed or replaced", self.path.name)
            self._close_store()
        if self._store is None:
            self._store = BlockStore(self.path, since=self.since)
            if self._store.rebuilt:
                _log.warning("KV store: %s; started a new one", self._store.rebuilt)
        return self._store

    def _close_store(self) -> None:
        with suppress(apsw.Error):
            if self._store is not None:
                self._store.close()
        self._store = None
