"""The engine as the daemon uses it: started when needed, several questions at a time, replaced when it dies."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kvd.errors import KvdError, UnavailableError
from kvd.service.drafts import Draft, Drafts, dropped_draft
from kvd.service.engine_child import Asking, EngineChild, Event
from kvd.service.engine_keeper import EngineKeeper, LoadParams
from kvd.service.metrics import Metrics
from kvd.service.store_writer import StoreWriter
from kvd.service.turns import Turns
from kvd.service.verdicts import Verdicts

COMMAND = (sys.executable, "-P", "-m", "kvd.worker")
MAX_WAITING = 16
_STATS_SECONDS = 0.3
_FORGET_SECONDS = 5.0
_HANG_SECONDS = 180.0
"""A child that is asked something and gives no sign of life for so long hangs: far more than any step takes."""
_LOOKS = 20
"""How often that is looked at in this time."""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """The child's result of one request, and what loading the model had cost before (0.0: it was loaded)."""

    result: dict[str, Any]
    model: str
    model_load_ms: float


class EngineClient:
    """Belongs to one event loop. The child is started by the first `ask`."""

    def __init__(
        self,
        writer: StoreWriter,
        verdicts: Verdicts,
        metrics: Metrics,
        command: Sequence[str] = COMMAND,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._keeper = EngineKeeper(tuple(command), writer, verdicts, metrics)
        self._turns = Turns(max_waiting)
        self._stats: dict[str, Any] = {}
        self.drafts = Drafts()
        self._last_used = time.monotonic()

    async def ask(self, load: LoadParams, params: dict[str, Any], on_event: Event) -> EngineAnswer:
        """Answer one question with the model of `load`; events of loading and answering go to `on_event`.

        Waits for its turn: `BusyError` when too many wait already. `UnavailableError` when the child dies.
        When this coroutine is cancelled, so is the child's work. Drafts make way as long as it runs.
        """
        return await self._request("ask", load, params, on_event)

    async def decide(self, load: LoadParams, params: dict[str, Any], on_event: Event) -> EngineAnswer:
        """The call that the model makes before it answers (`kvd.worker.deciding`); else as `ask`."""
        return await self._request("decide", load, params, on_event)

    async def rank(self, load: LoadParams, params: dict[str, Any], on_event: Event) -> EngineAnswer:
        """What each of a question's candidates gains by the model's judgement (`kvd.worker.rerank`); else as `ask`."""
        return await self._request("rank", load, params, on_event)

    async def _request(self, method: str, load: LoadParams, params: dict[str, Any], on_event: Event) -> EngineAnswer:
        with self.drafts.making_way():
            return await self._request_in_turn(method, load, params, on_event)

    async def _request_in_turn(
        self, method: str, load: LoadParams, params: dict[str, Any], on_event: Event
    ) -> EngineAnswer:
        def on_wait() -> None:
            on_event("stage", {"stage": "wait", "done": 0, "total": 0, "message": "for other questions"})

        async with self._turns.one(load, load.parallel, on_wait):
            try:
                return await self._request_now(method, load, params, on_event)
            finally:
                self._last_used = time.monotonic()

    async def _request_now(
        self, method: str, load: LoadParams, params: dict[str, Any], on_event: Event
    ) -> EngineAnswer:
        said = False

        def listen(event: str, data: dict[str, Any]) -> None:
            nonlocal said
            said = said or event == "token"
            on_event(event, data)

        try:
            return await self._request_once(method, load, params, listen)
        except _DiedError as death:
            if said:
                raise death.error from None
        # Another question may have been its end. Who has read nothing yet need not know of it.
        try:
            return await self._request_once(method, load, params, listen)
        except _DiedError as death:
            raise death.error from None

    async def _request_once(
        self, method: str, load: LoadParams, params: dict[str, Any], on_event: Event
    ) -> EngineAnswer:
        """Raises `_DiedError` where the child dies of itself meanwhile."""
        started = time.monotonic()
        ready = self._keeper.ready(load)
        child = await self._keeper.loaded(load, on_event)
        load_ms = 0.0 if ready else (time.monotonic() - started) * 1000
        model = str(self._keeper.facts.get("model") or load.model_name)
        asking = child.send(method, params, on_event)
        try:
            result = await self._answered(child, asking)
        except asyncio.CancelledError:
            await child.give_up(asking)
            raise
        except UnavailableError as error:
            if child.died:
                raise _DiedError(error) from error
            raise
        finally:
            self._ask_for_stats(child)
        return EngineAnswer(result, model, load_ms)

    async def _answered(self, child: EngineChild, asking: Asking) -> dict[str, Any]:
        """The child's answer; a child that gives no sign of life any more is ended."""
        silent = 0
        while not asking.answer.done():
            frames = child.frames
            await asyncio.wait({asking.answer}, timeout=_HANG_SECONDS / _LOOKS)
            # Looks are counted, not seconds: after a pause of this process too there are frames to be read.
            silent = silent + 1 if child.frames == frames else 0
            if silent == _LOOKS:
                child.kill(f"it gave no sign of life for {_HANG_SECONDS:.0f} s")
        return asking.answer.result()

    async def prefetch(self, draft: Draft, load: LoadParams, params: dict[str, Any]) -> dict[str, Any]:
        """Bring what a draft that has its turn recalls into the child's memory, and keep it there for a while.

        Never loads a model: `dropped` is why it was not done, or not to its end ("no-engine", "no-reuse", or the
        draft's), or ""; `hot`, `loaded` and `missing` count blocks. What is kept takes the place of what was kept
        for this client before.
        """
        child = self._keeper.child
        if draft.dropped:
            return dropped_draft(draft.dropped)
        if child is None or not self._keeper.ready(load):
            return dropped_draft("no-engine")
        return await self.drafts.bring(draft, child, params)

    async def forget(self, params: dict[str, Any]) -> None:
        """Have a child that is there give up what it holds of a conversation."""
        child = self._keeper.child
        if child is not None and child.alive and not self._keeper.loading:
            with suppress(TimeoutError, KvdError):
                await asyncio.wait_for(asyncio.shield(child.send("forget", params, _ignore).answer), _FORGET_SECONDS)

    async def stop(self) -> None:
        """Unload the model: end the child, at once if it does not end by itself in a few seconds."""
        self._stats = {}
        await self._keeper.stop()

    async def stop_if_idle(self, seconds: float) -> bool:
        """Unload the model if no question came for `seconds`; true if it did."""
        idle = time.monotonic() - self._last_used
        if self._keeper.child is None or self._turns.running or idle < seconds:
            return False
        # Of a kind of its own: beside it nobody has a turn.
        async with self._turns.one(object(), 1, lambda: None):
            await self.stop()
        return True

    @property
    def started(self) -> bool:
        """Whether there is a child, loaded or about to be."""
        return self._keeper.child is not None and self._keeper.child.alive

    @property
    def running(self) -> int:
        """Questions that are being answered, or have a model loaded for them."""
        return self._turns.running

    @property
    def waiting(self) -> int:
        """Questions that wait for their turn."""
        return self._turns.waiting

    async def state(self) -> dict[str, Any]:
        """`{"state": "stopped"|"loading"|"ready"|"busy", "running", "waiting", "pid", ...}` and the child's own words.

        Never waits long: a busy child is described by what it said last.
        """
        child = self._keeper.child
        turns = {"running": self._turns.running, "waiting": self._turns.waiting}
        base = {**turns, "pid": child.pid if child else None}
        if child is None or not child.alive:
            return {"state": "stopped", **base, "pid": None}
        if self._keeper.loading:
            return {"state": "loading", **base}
        await self._refresh_stats(child)
        state = "busy" if self._turns.running else "ready"
        return {"state": state, **base, "model_sha256": self._keeper.model_sha256, **self._keeper.facts, **self._stats}

    async def _refresh_stats(self, child: EngineChild) -> None:
        with suppress(TimeoutError, KvdError):
            await asyncio.wait_for(asyncio.shield(self._ask_for_stats(child)), _STATS_SECONDS)

    def _ask_for_stats(self, child: EngineChild) -> asyncio.Future[dict[str, Any]]:
        """Ask what the child holds; noted whenever it answers."""

        def note(answer: asyncio.Future[dict[str, Any]]) -> None:
            if child is self._keeper.child and not answer.cancelled() and not answer.exception():
                self._stats = answer.result()

        answer = child.send("stats", {}, _ignore).answer
        answer.add_done_callback(note)
        return answer


class _DiedError(Exception):
    """The child ended by a fault of its own, or somebody else's."""

    def __init__(self, error: UnavailableError) -> None:
        super().__init__(error.message)
        self.error = error


def _ignore(event: str, data: dict[str, Any]) -> None:
    """For requests whose events nobody wants."""
