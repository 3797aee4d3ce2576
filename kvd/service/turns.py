"""Who may use the engine now, and who is next."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from kvd.errors import BusyError

CLIENT: ContextVar[int] = ContextVar("client", default=0)
"""The client that what runs now is for, so that turns are dealt out fairly."""


@dataclass(slots=True, eq=False)
class _Turn:
    client: int
    kind: Hashable
    most: int
    called: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Turns:
    """Turns of the same kind run at the same time, those of another wait until these have ended.

    Among those that wait, the client with the fewest running ones is next, then who came first. Belongs to one
    event loop.
    """

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._most_of_one = most_waiting - most_waiting // 4
        """Places in the queue that one client may take."""
        self._waiting: list[_Turn] = []
        self._running: list[_Turn] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @asynccontextmanager
    async def one(self, kind: Hashable, most: int, on_wait: Callable[[], None]) -> AsyncIterator[None]:
        """A turn, beside at most `most - 1` others of its kind. Raises `BusyError` where too many wait already."""
        turn = _Turn(CLIENT.get(), kind, most)
        own = sum(other.client == turn.client for other in self._waiting)
        if len(self._waiting) >= self._most_waiting or own >= self._most_of_one:
            raise BusyError(f"{self.waiting} questions are waiting", hint="try again when some are answered")
        self._waiting.append(turn)
        self._call_next()
        try:
            if not turn.called.done():
                on_wait()
                await turn.called
            yield
        finally:
            (self._running if turn in self._running else self._waiting).remove(turn)
            self._call_next()

    def _call_next(self) -> None:
        while (turn := self._next()) is not None:
            self._waiting.remove(turn)
            self._running.append(turn)
            turn.called.set_result(None)

    def _next(self) -> _Turn | None:
        """Whose turn it is, if it can begin now."""
        if not self._waiting:
            return None
        kind, most = self._waiting[0].kind, self._waiting[0].most
        if self._running and (self._running[0].kind != kind or len(self._running) >= most):
            return None
        # Nobody is passed by one who came later and wants another kind: it would wait for ever.
        same = itertools.takewhile(lambda turn: turn.kind == kind, self._waiting)
        return min((turn for turn in same if not turn.called.done()), key=self._running_of, default=None)

    def _running_of(self, turn: _Turn) -> int:
        return sum(other.client == turn.client for other in self._running)
