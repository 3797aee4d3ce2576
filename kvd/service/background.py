"""Work that nobody waits for: one thread of low priority, and what it gives way to."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kvd.service.giving_way import GivingWay
from kvd.service.threads import run_cancellable

Result = TypeVar("Result")

_NICENESS = 10
"""Above that of the daemon itself; the system takes 19 for more than that."""


class Background(GivingWay):
    """Belongs to one event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.executor = ThreadPoolExecutor(1, "background", initializer=_be_nice)
        """Programs that are started in it get its priority."""

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
