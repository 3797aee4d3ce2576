"""What work that nobody waits for gives way to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class GivingWay:
    """Belongs to one event loop; any thread may look at `must_wait`."""

    def __init__(self) -> None:
        self._others = 0
        self._free = asyncio.Event()
        self._free.set()

    @contextmanager
    def making_way(self) -> Iterator[None]:
        """While something more urgent is there."""
        self._others += 1
        self._free.clear()
        try:
            yield
        finally:
            self._others -= 1
            if not self._others:
                self._free.set()

    def must_wait(self) -> bool:
        """Whether something more urgent is there."""
        return self._others > 0

    async def wait(self) -> None:
        """Until nothing more urgent is there."""
        await self._free.wait()
