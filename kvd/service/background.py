"""Work that nobody waits for: one thread of low priority, and what it gives way to."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from kvd.service.threads import run_cancellable

Result = TypeVar("Result")

_NICENESS = 10
"""Above that of the daemon itself; the system takes 19 for more than that."""


class Background:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(1, "background", initializer=_be_nice)
        """Programs that are started in it get its priority."""
        self._questions = 0
        self._free = asyncio.Event()
        self._free.set()

    @contextmanager
    def making_way(self) -> Iterator[None]:
        """While a question is there."""
        self._questions += 1
        self._free.clear()
        try:
            yield
        finally:
            self._questions -= 1
            if not self._questions:
                self._free.set()

    def must_wait(self) -> bool:
        """Whether a question is there. Any thread may ask."""
        return self._questions > 0

    async def wait(self) -> None:
        """Until no question is there."""
        await self._free.wait()

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, which is waited for also when this is cancelled."""
        return await run_cancellable(lambda cancelled: work(), self.executor)

    async def close(self) -> None:
        """End the thread, once it is done."""
        await asyncio.to_thread(self.executor.shutdown)


def _be_nice() -> None:
    # Elsewhere than on Linux this would be the whole process, or another one.
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS)
