"""Indexes of repositories: one update at a time for each, its progress told to everybody who waits for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvd.config import Settings
from kvd.errors import BusyError, StoreError
from kvd.recall.embed import Embedder, default_embedder
from kvd.recall.faults import DamageError, OtherIndexerError
from kvd.recall.only import EVERYTHING, Only
from kvd.recall.rank import search
from kvd.service.background import Background
from kvd.service.embedders import Embedders
from kvd.service.filler import Filler
from kvd.service.forgotten import remove_index
from kvd.service.indexer import Means, fill_index, is_complete, update_index
from kvd.service.threads import run_cancellable
from kvd.source.cutter import WarmCutters
from kvd.source.tree import find_root
from kvd.types import Hit, IndexSummary, Progress, ProgressCallback

_log = logging.getLogger(__name__)

Tell = Callable[[str], None]
Mend = Callable[[], Awaitable[None]]

_PROGRESS_SECONDS = 0.05
_PARSERS_IDLE_S = 120.0
_PATIENCE_S = 5.0
"""So long a search waits for another program that is at the index, and an update at a time: others have their turn."""


@dataclass(slots=True)
class _Work:
    """`users` work on it or wait for their turn; `listeners` are those of them that somebody's request waits for.

    `busy`: when (`time.monotonic()`) another program was last found to be at the index, and the error for that.
    """

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    listeners: list[ProgressCallback] = field(default_factory=list)
    busy: tuple[float, BusyError] | None = None


@dataclass(frozen=True, slots=True)
class _Latest:
    """The last update that came to its end; `began` is `time.monotonic()`."""

    began: float
    settings: Settings
    summary: IndexSummary


class Repositories:
    """Belongs to one event loop; callbacks are called in it."""

    def __init__(self) -> None:
        self._work: dict[Path, _Work] = {}
        self._latest: dict[Path, _Latest] = {}
        # Apart, as a child has the priority of the thread that it was started in.
        self._cutters, self._background_cutters = WarmCutters(), WarmCutters()
        self._embedders = Embedders()
        self._embedder: Embedder | None = None
        """That of the last update; None for the default one."""
        self.filler = Filler(lambda root, stop: fill_index(root, self._embedder or default_embedder(), stop))

    async def find_root(self, path: str) -> Path:
        """The repository that `path` (absolute) is in; `RepositoryError` where there is none to read."""
        return await asyncio.to_thread(find_root, Path(path))

    async def update(
        self, root: Path, settings: Settings, on_progress: ProgressCallback, wait: bool = True
    ) -> IndexSummary:
        """Bring the index up to date; cheap when nothing changed. Cancelling loses nothing that is done.

        Who waited while another update began and came to its end needs no other. `wait`: as long as it takes for
        another program that indexes this repository; otherwise raises `OtherIndexerError` after some seconds.
        """
        arrived = time.monotonic()
        with self._at_work(root) as work:
            work.listeners.append(on_progress)
            try:
                with self.filler.making_way():
                    means = replace(await self._means(settings), cutters=self._cutters, patience=_PATIENCE_S)
                    while True:
                        with suppress(OtherIndexerError) if wait else nullcontext():
                            return await self._update_in_turn(root, settings, work, means, arrived, wait)
            finally:
                work.listeners.remove(on_progress)

    async def _update_in_turn(
        self, root: Path, settings: Settings, work: _Work, means: Means, arrived: float, wait: bool
    ) -> IndexSummary:
        async with work.turn:
            latest = self._latest.get(root)
            if latest is not None and latest.began > arrived and latest.settings == settings:
                return latest.summary
            if work.busy is not None and work.busy[0] > arrived and not wait:
                raise work.busy[1]
            report = _throttled(asyncio.get_running_loop(), work.listeners)

            def run(cancelled: Callable[[], bool]) -> IndexSummary:
                return update_index(root, settings, report, cancelled, means)

            try:
                return await self._noted(root, settings, run_cancellable(run))
            except BusyError as error:
                work.busy = time.monotonic(), error
                raise

    async def forget(self, root: Path) -> int | None:
        """Remove the index of `root`: the bytes that were given back, None where there was none."""
        with self._at_work(root) as work:
            async with work.turn:
                self._latest.pop(root, None)
                return await run_cancellable(lambda cancelled: remove_index(root, cancelled))

    async def update_if_possible(self, root: Path, settings: Settings, on_progress: ProgressCallback) -> str:
        """`update`, but where the index can be read and not written it stays as it is. Returns why, or ""."""
        try:
            await self.update(root, settings, on_progress, wait=False)
        except (BusyError, StoreError) as error:
            if not await asyncio.to_thread(is_complete, root):
                if not isinstance(error, OtherIndexerError):
                    raise
                # There is nothing yet to search in.
                await self.update(root, settings, on_progress)
                return ""
            _log.warning("an index is used as it is: %s", error.message)
            return f"the index is as it was, and files may have changed since: {error.message}"
        return ""

    async def refresh(
        self, root: Path, settings: Settings, background: Background, since: float, files: bool
    ) -> IndexSummary | None:
        """An update that nobody asked for, in `background`; None where one that began after `since` came first.

        `files`: some are known to have changed. Raises `CancelledError` as soon as a question is there, or somebody
        waits for an update of this root. What it had done by then is kept. Raises `OtherIndexerError` as `update` does.
        """
        with self._at_work(root) as work, self.filler.making_way():
            means = replace(
                await self._means(settings), cutters=self._background_cutters, prepare=files, patience=_PATIENCE_S
            )
            async with work.turn:
                if self.is_current(root, since):
                    return None
                report = _throttled(asyncio.get_running_loop(), work.listeners)

                def run(cancelled: Callable[[], bool]) -> IndexSummary:
                    def stop() -> bool:
                        return cancelled() or background.must_wait() or bool(work.listeners)

                    return update_index(root, settings, report, stop, means)

                return await self._noted(root, settings, run_cancellable(run, background.executor))

    async def _noted(self, root: Path, settings: Settings, update: Coroutine[None, None, IndexSummary]) -> IndexSummary:
        """Run `update`, and remember when it began if it comes to its end."""
        began = time.monotonic()
        summary = await update
        self._latest[root] = _Latest(began, settings, summary)
        if summary.pending_vectors:
            self.filler.want(root)
        return summary

    async def _means(self, settings: Settings) -> Means:
        means = await asyncio.to_thread(self._embedders.means, settings)
        self._embedder = means.embedder
        return means

    @contextmanager
    def _at_work(self, root: Path) -> Iterator[_Work]:
        work = self._work.setdefault(root, _Work())
        work.users += 1
        try:
            yield work
        finally:
            work.users -= 1
            if not work.users:
                del self._work[root]

    def is_current(self, root: Path, since: float) -> bool:
        """Whether an update that came to its end began after `since` (`time.monotonic()`)."""
        latest = self._latest.get(root)
        return latest is not None and latest.began > since

    async def search(
        self,
        root: Path,
        query: str,
        top_k: int,
        only: Only = EVERYTHING,
        tell: Tell | None = None,
        mend: Mend | None = None,
    ) -> list[Hit]:
        """The best chunks, best first; empty when nothing is relevant. A search that is cancelled is waited for.

        `tell` hears what `rank.search` tells. `mend` updates an index that turns out to be damaged, which makes it
        anew; it is searched once more then.
        """
        try:
            return await self._search(root, query, top_k, only, tell)
        except DamageError as error:
            if mend is None:
                raise
            _log.warning("%s", error.message)
            await mend()
        return await self._search(root, query, top_k, only, tell)

    async def _search(self, root: Path, query: str, top_k: int, only: Only, tell: Tell | None) -> list[Hit]:
        told: list[str] = []
        with self.filler.making_way():
            hits = await run_cancellable(
                lambda cancelled: search(root, query, top_k, only=only, embedder=self._embedder, tell=told.append)
            )
        if tell is not None:
            for text in told:
                tell(text)
        return hits

    async def unload_if_idle(self, seconds: float) -> None:
        """Unload an embedder's model that nothing was asked for so long, and end parsers that have nothing to do."""
        await asyncio.to_thread(self._embedders.close_if_idle, seconds)
        for cutters in (self._cutters, self._background_cutters):
            await asyncio.to_thread(cutters.close_if_idle, _PARSERS_IDLE_S)

    async def close(self) -> None:
        # A slow embedder's batch may take a minute, and what is done is kept.
        self._embedders.interrupt()
        await self.filler.close()
        await asyncio.to_thread(self._embedders.close)
        for cutters in (self._cutters, self._background_cutters):
            await asyncio.to_thread(cutters.close_if_idle)

    @property
    def busy(self) -> list[str]:
        """The roots that are being indexed now."""
        return sorted(str(root) for root, work in self._work.items() if work.turn.locked())


def _throttled(loop: asyncio.AbstractEventLoop, listeners: list[ProgressCallback]) -> ProgressCallback:
    """A callback for the working thread that passes on what people can still read."""
    last = ("", 0.0)

    def tell(progress: Progress) -> None:
        for listener in list(listeners):
            listener(progress)

    def report(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        over = progress.total > 0 and progress.done >= progress.total
        if progress.stage == last[0] and not over and now - last[1] < _PROGRESS_SECONDS:
            return
        last = (progress.stage, now)
        loop.call_soon_threadsafe(tell, progress)

    return report
