"""Updates of indexes that were asked for and that nobody waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from kvd.errors import KvdError
from kvd.types import IndexSummary

_log = logging.getLogger(__name__)


class Unattended:
    """Belongs to one event loop. One run for a root at a time: all that is wanted meanwhile becomes one further run."""

    def __init__(self, update: Callable[[Path], Awaitable[IndexSummary | None]]) -> None:
        """`update` returns None where another update came first."""
        self._update = update
        self._tasks: dict[Path, asyncio.Task[None]] = {}
        self._wanted: set[Path] = set()

    @property
    def busy(self) -> bool:
        """Whether a run goes on or waits."""
        return bool(self._tasks)

    def want(self, root: Path) -> None:
        """Have `root` brought up to date by a run that begins after this."""
        self._wanted.add(root)
        if root not in self._tasks:
            self._tasks[root] = asyncio.create_task(self._run(root))

    async def _run(self, root: Path) -> None:
        try:
            while root in self._wanted:
                self._wanted.discard(root)
                await self._update_once(root)
        finally:
            del self._tasks[root]

    async def _update_once(self, root: Path) -> None:
        try:
            summary = await self._update(root)
            if summary is not None:
                _log.info("background index: %d files, %d chunks", summary.files, summary.chunks)
        except KvdError as error:
            _log.warning("background index failed: %s", error.code)
        except Exception as error:
            _log.error("background index failed: %s", type(error).__name__)

    async def close(self) -> None:
        """Interrupt all runs; what they had done is kept."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
