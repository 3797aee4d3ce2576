"""Blocking work for the event loop, in threads that can be told to stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


async def run_cancellable(work: Callable[[Callable[[], bool]], Result], executor: Executor | None = None) -> Result:
    """Run `work(cancelled)` in a thread of `executor`, None being the loop's; `cancelled()` becomes true when this
    coroutine is cancelled.

    Returns or raises only after the thread is done: locks that the caller holds stay held while it works.
    """
    stop = threading.Event()
    future = asyncio.get_running_loop().run_in_executor(executor, work, stop.is_set)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.set()
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({future})
        if not future.cancelled():
            # Looked at, because asyncio reports exceptions that nobody takes.
            future.exception()
        raise
