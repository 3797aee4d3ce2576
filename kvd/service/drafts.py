"""Drafts of questions: what they recall is brought into an engine child's memory while nobody asks.

One draft has its turn at a time, from its recall to the child's answer, and the newest draft of each client waits for
one. So whatever clients announce, a question finds one draft to stop and never a line of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvd.service.engine_child import Asking, EngineChild


def dropped_draft(why: str) -> dict[str, Any]:
    """The result of a draft for which nothing was done: "no-engine", "busy", "replaced", or "" (nothing to do)."""
    return {"dropped": why, "hot": 0, "loaded": 0, "missing": 0}


@dataclass(slots=True, eq=False)
class Draft:
    """A draft until it is answered; `dropped` says why no more is to be done for it, or ""."""

    client: int
    dropped: str = ""
    called: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has its turn, or needs none any more."""
    child: EngineChild | None = None
    asking: Asking | None = None
    brought: bool = False
    """Whether what the child holds for the client is this draft's."""

    def drop(self, why: str) -> None:
        """The first reason stays."""
        if self.dropped:
            return
        self.dropped = why
        self.called.set()
        if self.child is not None and self.asking is not None:
            self.child.cancel(self.asking)


class Drafts:
    """Clients go by number; belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[int, Draft] = {}
        """By client, the next one first."""
        self._running: Draft | None = None
        self._holders: dict[int, EngineChild] = {}
        """Clients for which a child may hold something."""
        self._questions = 0

    @asynccontextmanager
    async def turn(self, client: int) -> AsyncIterator[Draft]:
        """The turn of a new draft of `client`, whose older one is dropped.

        Begins at once where it is dropped meanwhile: look at `dropped`, now and after every wait. Unless it was brought
        in, nothing is kept for the client afterwards.
        """
        draft = self._announce(client)
        try:
            await draft.called.wait()
            yield draft
        except asyncio.CancelledError:
            draft.drop("cancelled")
            raise
        finally:
            if not draft.brought and draft.dropped != "replaced":
                self.release(client)
            self._leave(draft)

    def _announce(self, client: int) -> Draft:
        draft = Draft(client)
        for older in (self._waiting.get(client), self._running):
            if older is not None and older.client == client:
                older.drop("replaced")
        # In the place of the older one, if that waited: who types on does not go to the end of the line.
        self._waiting[client] = draft
        if self._questions:
            draft.drop("busy")
        self._call_next()
        return draft

    def _call_next(self) -> None:
        if self._running is None and self._waiting:
            self._running = self._waiting.pop(next(iter(self._waiting)))
            self._running.called.set()

    def _leave(self, draft: Draft) -> None:
        if self._waiting.get(draft.client) is draft:
            del self._waiting[draft.client]
        if self._running is not draft:
            return
        if draft.asking is None:
            self._end_turn()
        else:
            # Its client may have gone while the child is still at it.
            draft.asking.answer.add_done_callback(self._end_turn)

    def _end_turn(self, answer: asyncio.Future[dict[str, Any]] | None = None) -> None:
        self._running = None
        self._call_next()

    async def bring(self, draft: Draft, child: EngineChild, params: dict[str, Any]) -> dict[str, Any]:
        """The child's result of the draft that has its turn."""
        draft.child = self._holders[draft.client] = child
        draft.asking = child.send("prefetch", {**params, "client": draft.client}, lambda event, data: None)
        result = await asyncio.shield(draft.asking.answer)
        draft.brought = True
        return {**result, "dropped": draft.dropped or result["dropped"]}

    @contextmanager
    def making_way(self) -> Iterator[None]:
        """While a question is there: whatever is being brought in is left as it is, and no draft is begun."""
        self._questions += 1
        for draft in (*self._waiting.values(), self._running):
            if draft is not None:
                draft.drop("busy")
        try:
            yield
        finally:
            self._questions -= 1

    def release(self, client: int) -> None:
        """Nothing needs to be kept for `client` any more."""
        child = self._holders.pop(client, None)
        if child is not None:
            child.send("release", {"client": client}, lambda event, data: None)
