"""Keeping indexes true before anybody asks: which repositories are watched.

What a question finds does not depend on it: every question brings the index up to date itself. Here that is done
ahead, with low priority, so that there is little left to do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kvd.config import Settings, load_settings
from kvd.errors import CancelledError, KvdError
from kvd.recall.faults import OtherIndexerError
from kvd.service.background import Background
from kvd.service.metrics import Metrics
from kvd.service.recent import note_use, recently_used
from kvd.service.repositories import Repositories
from kvd.service.tended import MOST_FOLDERS, OFF, Tended
from kvd.source.watch import Watcher
from kvd.types import IndexSummary

_log = logging.getLogger(__name__)

MOST_ROOTS = 16

_RECENT_DAYS = 3
_MOST_RECENT = 4
"""How many of the repositories that were used in these days are watched from the daemon's start."""


class Watching:
    """Belongs to one event loop."""

    def __init__(self, repositories: Repositories, metrics: Metrics) -> None:
        self._repositories, self._metrics = repositories, metrics
        self._background = Background()
        self._watcher = Watcher()
        self._tended: dict[Path, tuple[Tended, asyncio.Task[None]]] = {}
        """The one used last at the end."""
        self._ended: dict[Path, str] = {}
        """Why it is not watched any more."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._said: set[str] = set()
        self._off = ""
        self._closed = False

    def start(self) -> None:
        """Watch what was used lately, before this daemon."""
        self._task(self._watch_recent())

    async def _watch_recent(self) -> None:
        with suppress(KvdError, OSError):
            roots = await self._background.run(lambda: recently_used(_RECENT_DAYS * 86_400, _MOST_RECENT))
            for root in roots:
                if root not in self._tended and self._allowed():
                    self._begin(root)

    @contextmanager
    def making_way(self) -> Iterator[None]:
        """While a question is there: no run begins, and one that goes on stops after the file at hand."""
        with self._background.making_way():
            yield

    async def refresh(self, root: Path, settings: Settings) -> IndexSummary | None:
        """An update that nobody waits for, once no question is there; None: another that begins now came first."""
        since = time.monotonic()
        while True:
            await self._background.wait()
            # Somebody asks, or waits for an update of this root: theirs will do. Other roots go before one that waits.
            with suppress(CancelledError, OtherIndexerError):
                return await self._repositories.refresh(root, settings, self._background, since, files=False)

    def used(self, root: Path) -> None:
        """A request was about `root`: if its index could be brought up to date, it is watched from now on."""
        if self._closed or not self._repositories.is_current(root, 0.0) or not self._allowed():
            return
        held = self._tended.pop(root, None)
        if held is None or held[0].ended:
            self._begin(root)
        else:
            self._tended[root] = held
            held[0].used()
        asyncio.get_running_loop().run_in_executor(None, note_use, root)

    def forget(self, root: Path) -> None:
        """Its index goes."""
        if root in self._tended:
            self._end(root)

    def _allowed(self) -> bool:
        """Whether the settings have anything watched; ends all watches if not."""
        with suppress(KvdError):
            # Of settings that can't be read nothing follows.
            self._off = "" if load_settings().watch else OFF
        if self._off:
            for root in list(self._tended):
                self._end(root)
        return not self._off

    def _begin(self, root: Path) -> None:
        self._ended.pop(root, None)
        count = self._metrics.count_background_update
        tended = Tended(root, self._repositories, self._watcher, self._background, count)
        self._tended[root] = tended, self._task(self._tend(tended))
        while len(self._tended) > MOST_ROOTS:
            self._end(next(iter(self._tended)))

    def _end(self, root: Path) -> None:
        self._tended.pop(root)[1].cancel()

    async def _tend(self, tended: Tended) -> None:
        why = "the daemon's log says why"
        try:
            why = await tended.tend(lambda: self._placed(tended))
            _log.info("a repository is not watched any more: %s", why)
        except Exception as error:
            _log.error("a repository is not watched any more: %s", type(error).__name__)
        held = self._tended.get(tended.root)
        if held is not None and held[0] is tended:
            del self._tended[tended.root]
            self._ended[tended.root] = why

    def _placed(self, tended: Tended) -> None:
        """Keep all together within the allowed number of folders: who was used longest ago leaves."""
        if tended.unwatchable and tended.unwatchable not in self._said:
            self._said.add(tended.unwatchable)
            _log.warning("changes are polled for, as %s", tended.unwatchable)
        for root, (other, _) in list(self._tended.items()):
            if self.folders > MOST_FOLDERS and other is not tended:
                self._end(root)

    def _task(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def folders(self) -> int:
        """How many folders are watched."""
        return sum(tended.folders for tended, _ in self._tended.values())

    def counts(self) -> dict[str, int]:
        """How many repositories are looked after by "events" and by "polling"."""
        tended = [tended for tended, _ in self._tended.values()]
        return {
            "events": sum(item.folders > 0 for item in tended),
            "polling": sum(bool(item.unwatchable) for item in tended),
        }

    def state(self, repo: str) -> dict[str, Any]:
        """`state` ("watched", "polled", "off") of a repository, `why` it is not watched, and how many `folders` are."""
        held = self._tended.get(Path(repo))
        if held is not None:
            return held[0].state()
        why = self._off or self._ended.get(Path(repo), "not used lately")
        return {"state": "off", "why": why, "folders": 0}

    async def close(self) -> None:
        """End all watches and their threads."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        await asyncio.to_thread(self._watcher.close)
        await self._background.close()
