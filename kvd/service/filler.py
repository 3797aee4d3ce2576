"""Vectors behind the indexes, filled in while nothing else goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kvd.errors import KvdError
from kvd.service.giving_way import GivingWay
from kvd.service.threads import run_cancellable

_log = logging.getLogger(__name__)

Fill = Callable[[Path, Callable[[], bool]], int]
"""Makes vectors for the index of a repository until it is told to stop; gives the number of chunks without one."""


class Filler(GivingWay):
    """One repository at a time, each until it is done. Belongs to one event loop.

    It gives way to index runs and questions: what is at work stops after its batch, and goes on later.
    """

    def __init__(self, fill: Fill) -> None:
        super().__init__()
        self._fill = fill
        self._roots: dict[Path, None] = {}
        self._task: asyncio.Task[None] | None = None
        self.fault = ""
        """Why the last try failed, or ""."""

    def want(self, root: Path) -> None:
        """Chunks of this repository wait for vectors."""
        self._roots[root] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._roots:
            await self.wait()
            root = next(iter(self._roots))
            # Taken out first: an index run that leaves more puts it in again.
            del self._roots[root]
            if await self._go_on(root):
                self._roots[root] = None

    async def _go_on(self, root: Path) -> bool:
        """Whether there is more to do."""

        def work(cancelled: Callable[[], bool]) -> int:
            return self._fill(root, lambda: cancelled() or self.must_wait())

        try:
            left = await run_cancellable(work)
        except KvdError as error:
            # The next index run of this repository asks again.
            self.fault = error.message
            _log.warning("no vectors: %s", error.code)
            return False
        except Exception as error:
            self.fault = f"making vectors failed ({type(error).__name__})"
            _log.exception("making vectors failed")
            return False
        self.fault = ""
        return left > 0

    @property
    def busy(self) -> bool:
        """Whether there is something left to do."""
        return self._task is not None and not self._task.done()

    async def close(self) -> None:
        """Stop after the batch at work; what is done is kept."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
