"""One repository whose index is kept true without being asked: what changes is indexed when it has come to rest."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvd import paths
from kvd.config import REPOSITORY_FILE, load_settings
from kvd.errors import CancelledError, KvdError, RepositoryError
from kvd.recall.faults import OtherIndexerError
from kvd.service.background import Background
from kvd.service.repositories import Repositories
from kvd.source.folders import git_files, ignored, visible_folders
from kvd.source.watch import Changes, NoEventsError, Noticed, RootWatch, Watcher

_log = logging.getLogger(__name__)

OFF = "watch = false in the settings"
_OFF_HERE = f"watch = false in its {REPOSITORY_FILE}"

MOST_FOLDERS = 8_192
"""Of one repository, and of all together: inotify watches, of which the system has a limited number for a user."""

QUIET_SECONDS = 0.3
"""Changes are indexed when nothing more has changed for so long,"""

LONGEST_SECONDS = 2.0
"""but so long after the first of them at the latest."""

_REST_SHARE = 2
"""After a run comes a rest of so many times what it took: a steady stream of changes costs a third of a core."""

_LONGEST_REST = 30.0
"""In seconds. The rest doubles with each run that finds nothing, up to this."""

POLL_SECONDS = 10.0
_POLL_SHARE = 100
"""Without events the next look comes after so many times what one takes, and not before `POLL_SECONDS`."""


class Tended:
    """Belongs to one event loop. What blocks runs in `background`."""

    def __init__(
        self,
        root: Path,
        repositories: Repositories,
        watcher: Watcher,
        background: Background,
        count: Callable[[str], None],
    ) -> None:
        """`count` gets the result of each run: "changed", "unchanged" or "failed"."""
        self.root = root
        self.unwatchable = ""
        """Why there are no events, so that it is polled, or ""."""
        self._repositories, self._watcher, self._background, self._count = repositories, watcher, background, count
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._noticed = Noticed(self._wake)
        self._watch: RootWatch | None = None
        self._looked = False
        self._took = 0.0
        self._fruitless = 0
        self._rest_until = 0.0
        # Nothing is watched yet, so that anything may have changed.
        self._noticed.add_anything()

    @property
    def ended(self) -> str:
        """Why nothing will be noticed any more, or ""."""
        return self._noticed.ended

    @property
    def folders(self) -> int:
        """How many folders are watched."""
        return 0 if self._watch is None else len(self._watch)

    def state(self) -> dict[str, Any]:
        """As `Watching.state`."""
        if self.ended:
            return {"state": "off", "why": self.ended, "folders": 0}
        if self.unwatchable:
            return {"state": "polled", "why": self.unwatchable, "folders": 0}
        if self._watch is None:
            return {"state": "off", "why": "about to be watched", "folders": 0}
        return {"state": "watched", "why": "", "folders": self.folders}

    def used(self) -> None:
        """It is asked about; perhaps there are events by now."""
        if self.unwatchable:
            self._noticed.add_anything()

    async def tend(self, on_watch: Callable[[], None]) -> str:
        """Runs until nothing can be noticed any more; returns why. `on_watch` is called after watches were placed."""
        try:
            while not self.ended:
                await self._settle()
                await self._look(on_watch)
        except RepositoryError:
            self._noticed.end("its folder can't be read any more")
        finally:
            watch, self._watch = self._watch, None
            if watch is not None:
                await self._background.run(watch.close)
        return self.ended

    def _wake(self) -> None:
        # The loop may have ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._woken.set)

    async def _settle(self) -> None:
        """Wait until there is something to do, and it is time to do it."""
        polled = self.unwatchable and self._looked
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), max(POLL_SECONDS, self._took * _POLL_SHARE) if polled else None)
        self._woken.clear()
        first = time.monotonic()
        while True:
            quiet = min(self._noticed.moment + QUIET_SECONDS, first + LONGEST_SECONDS)
            left = max(quiet, self._rest_until) - time.monotonic()
            if left <= 0 and not self._background.must_wait():
                return
            await asyncio.sleep(left)
            await self._background.wait()

    async def _look(self, on_watch: Callable[[], None]) -> None:
        """Index what changed, if that counts."""
        if not await self._background.run(lambda: os.path.realpath(self.root) == str(self.root)):
            self._noticed.end("its folder was replaced by a link")
        if why := await self._background.run(lambda: _why_off(self.root)):
            self._noticed.end(why)
        if self.ended:
            return
        changes = self._noticed.take()
        if await self._background.run(lambda: self._nothing_counts(changes)):
            return
        if changes.folders:
            await self._background.run(self._rewatch)
            # What changed in new folders before that was not noticed.
            changes.moment = time.monotonic()
            on_watch()
        await self._index(changes)

    def _nothing_counts(self, changes: Changes) -> bool:
        """Whether git ignores all that changed."""
        if changes.anything or not changes.paths:
            return False
        hidden = ignored(self.root, changes.paths) or set()
        self._noticed.mute(hidden)
        return hidden == changes.paths

    def _rewatch(self) -> None:
        """Watch the folders that there are now, or learn why that can't be."""
        before, watch = self._watch, None
        try:
            folders = visible_folders(self.root, _own_folders())
            watch = self._watcher.watch(self.root, folders, git_files(self.root), self._noticed, MOST_FOLDERS)
            self.unwatchable = ""
        except NoEventsError as error:
            self.unwatchable = str(error)
        self._watch = watch
        if before is not None:
            before.close()

    async def _index(self, changes: Changes) -> None:
        started = time.monotonic()
        result = "failed"
        try:
            settings = await self._background.run(lambda: load_settings(self.root))
            summary = await self._repositories.refresh(
                self.root, settings, self._background, since=changes.moment or started, files=changes.files
            )
            if summary is None:
                return
            result = "changed" if summary.added or summary.changed or summary.deleted else "unchanged"
        except CancelledError:
            self._noticed.put_back(changes)
            return
        except RepositoryError:
            raise
        except KvdError as error:
            if isinstance(error, OtherIndexerError):
                self._noticed.put_back(changes)
            _log.warning("background update failed: %s", error.code)
        self._count(result)
        self._rest(time.monotonic() - started, fruitless=result != "changed")

    def _rest(self, took: float, fruitless: bool) -> None:
        # The first run is expected to find nothing.
        self._fruitless = self._fruitless + 1 if fruitless and self._looked else 0
        self._took, self._looked = took, True
        rest = took * _REST_SHARE * 2 ** min(self._fruitless, 10)
        self._rest_until = time.monotonic() + min(rest, _LONGEST_REST)


def _why_off(root: Path) -> str:
    """Why the settings have `root` not watched, or ""; from settings that can't be read nothing follows."""
    with suppress(KvdError):
        if not load_settings(root).watch:
            return _OFF_HERE if load_settings().watch else OFF
    return ""


def _own_folders() -> frozenset[str]:
    """Where kvd itself writes: to watch that would never end."""
    own = (paths.cache_dir(), paths.data_dir(), paths.log_file().parent, paths.runtime_dir())
    return frozenset(os.path.realpath(folder) for folder in own)
