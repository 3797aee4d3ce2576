"""Drafts of questions: an engine child brings in what they recall, while it has nothing else to do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from kvd.service.engine_child import Asking, EngineChild


def dropped_draft(why: str) -> dict[str, Any]:
    """The result of a draft for which nothing was done: "no-engine", "busy", "replaced", or "" (nothing to do)."""
    return {"dropped": why, "hot": 0, "loaded": 0, "missing": 0}


@dataclass(slots=True)
class _Draft:
    """A draft on its way; `dropped` says why its child was told to stop, or ""."""

    child: EngineChild
    asking: Asking
    dropped: str = ""

    def stop(self, why: str) -> None:
        if not self.dropped:
            self.dropped = why
            self.child.notify("cancel", {"id": self.asking.id})


class Drafts:
    """At most one at a time for each client, by number; belongs to one event loop."""

    def __init__(self) -> None:
        self._running: dict[int, _Draft] = {}
        self._leasing: set[int] = set()
        """Clients for which the child may hold something."""

    async def bring(self, child: EngineChild, client: int, params: dict[str, Any]) -> dict[str, Any]:
        """The child's result of one draft; an earlier one of the same client is dropped.

        When this coroutine is cancelled, so is the child's work, and nothing is kept for `client`.
        """
        if client in self._running:
            self._running[client].stop("replaced")
        asking = child.send("prefetch", {**params, "client": client}, lambda event, data: None)
        draft = self._running[client] = _Draft(child, asking)
        self._leasing.add(client)
        try:
            result = await asyncio.shield(asking.answer)
        except asyncio.CancelledError:
            await child.give_up(asking)
            if self._running.get(client) is draft:
                self.release(child, client)
            raise
        finally:
            if self._running.get(client) is draft:
                del self._running[client]
        return {**result, "dropped": draft.dropped or result["dropped"]}

    def make_way(self) -> None:
        """A question has come: whatever is being brought in is left as it is."""
        for draft in self._running.values():
            draft.stop("busy")

    def release(self, child: EngineChild | None, client: int) -> None:
        """Nothing needs to be kept for `client` any more."""
        if client in self._leasing and child is not None:
            child.send("release", {"client": client}, lambda event, data: None)
        self._leasing.discard(client)

    def forget(self) -> None:
        """The child is gone, and all that it kept."""
        self._leasing.clear()
