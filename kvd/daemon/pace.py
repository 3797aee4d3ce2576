"""How fast the messages of one client are taken, so that a flood of them leaves the event loop to the others."""

from __future__ import annotations

import asyncio
import time

_FREE_S = 0.05
"""Seconds of the event loop that a client may use at once."""

_LEAST_S = 0.0005
"""What a message costs at least: to read it is the smaller part."""

_SHARE = 0.5
"""Of the event loop, for the messages of all clients together, in the long run."""


class Pace:
    """Of one client."""

    def __init__(self) -> None:
        self._debt = 0.0
        self._since = time.monotonic()

    async def keep(self, seconds: float, clients: int) -> None:
        """After a message that took `seconds`: wait as long as is fair to so many clients."""
        now = time.monotonic()
        share = _SHARE / max(clients, 1)
        self._debt = max(0.0, self._debt - (now - self._since) * share) + max(seconds, _LEAST_S)
        self._since = now
        if self._debt > _FREE_S:
            await asyncio.sleep((self._debt - _FREE_S) / share)
