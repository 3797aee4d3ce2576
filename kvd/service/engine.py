"""The engine as the daemon uses it: started when needed, one question at a time, replaced when it dies."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kvd.errors import BusyError, KvdError, UnavailableError
from kvd.service.attempt import Attempt
from kvd.service.drafts import Draft, Drafts, dropped_draft
from kvd.service.engine_child import EngineChild, Event
from kvd.service.metrics import Metrics
from kvd.service.store_writer import StoreWriter
from kvd.service.verdicts import Verdicts

_log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-P", "-m", "kvd.worker")
MAX_WAITING = 16
LOAD_SECONDS = 1800.0
_STATS_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class LoadParams:
    """What a child is loaded with; another value of any of these needs another child."""

    model_path: str
    model_name: str
    model_sha256: str
    store_path: str
    n_ctx: int
    threads: int
    gpu_layers: int
    reuse: bool
    recompute: int
    short_headers: bool
    resident_prompts: int
    pool_bytes: int
    eviction: str

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


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
        self._writer, self._verdicts, self._metrics = writer, verdicts, metrics
        self._command = tuple(command)
        self._max_waiting = max_waiting
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._child: EngineChild | None = None
        self._loading: asyncio.Task[tuple[EngineChild, dict[str, Any]]] | None = None
        self._loading_listener: Event | None = None
        self._params: LoadParams | None = None
        self._loaded: dict[str, Any] = {}
        self._stats: dict[str, Any] = {}
        self.drafts = Drafts()
        self._last_used = time.monotonic()

    async def ask(self, load: LoadParams, params: dict[str, Any], on_event: Event) -> EngineAnswer:
        """Answer one question with the model of `load`; events of loading and answering go to `on_event`.

        Waits for its turn: `BusyError` when too many wait already. `UnavailableError` when the child dies.
        When this coroutine is cancelled, so is the child's work. Drafts make way as long as it runs.
        """
        return await self._request("ask", load, params, on_event)

    async def rank(self, load: LoadParams, params: dict[str, Any], on_event: Event) -> EngineAnswer:
        """What each of a question's candidates gains by the model's judgement (`kvd.worker.rerank`); else as `ask`."""
        return await self._request("rank", load, params, on_event)

    async def _request(self, method: str, load: LoadParams, params: dict[str, Any], on_event: Event) -> EngineAnswer:
        with self.drafts.making_way():
            return await self._request_in_turn(method, load, params, on_event)

    async def _request_in_turn(
        self, method: str, load: LoadParams, params: dict[str, Any], on_event: Event
    ) -> EngineAnswer:
        if self._waiting >= self._max_waiting:
            raise BusyError(f"{self._waiting} questions are waiting", hint="try again when some are answered")
        self._waiting += 1
        try:
            if self._turn.locked():
                on_event("stage", {"stage": "wait", "done": 0, "total": 0, "message": "for other questions"})
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._request_now(method, load, params, on_event)
        finally:
            self._last_used = time.monotonic()
            self._turn.release()

    async def _request_now(
        self, method: str, load: LoadParams, params: dict[str, Any], on_event: Event
    ) -> EngineAnswer:
        started = time.monotonic()
        ready = self._ready(load)
        child = await self._ensure_loaded(load, on_event)
        load_ms = 0.0 if ready else (time.monotonic() - started) * 1000
        model = str(self._loaded.get("model") or load.model_name)
        asking = child.send(method, params, on_event)
        try:
            result = await asyncio.shield(asking.answer)
        except asyncio.CancelledError:
            await child.give_up(asking)
            raise
        finally:
            # While the next question is answered nobody can ask.
            self._ask_for_stats(child)
        return EngineAnswer(result, model, load_ms)

    async def prefetch(self, draft: Draft, load: LoadParams, params: dict[str, Any]) -> dict[str, Any]:
        """Bring what a draft that has its turn recalls into the child's memory, and keep it there for a while.

        Never loads a model: `dropped` is why it was not done, or not to its end ("no-engine", "no-reuse", or the
        draft's), or ""; `hot`, `loaded` and `missing` count blocks. What is kept takes the place of what was kept
        for this client before.
        """
        child = self._child
        if draft.dropped:
            return dropped_draft(draft.dropped)
        if child is None or not self._ready(load):
            return dropped_draft("no-engine")
        return await self.drafts.bring(draft, child, params)

    def _ready(self, load: LoadParams) -> bool:
        task = self._loading
        usable = self._child is not None and self._child.alive and self._params == load
        return usable and task is not None and task.done() and not task.cancelled() and not task.exception()

    async def _ensure_loaded(self, load: LoadParams, on_event: Event) -> EngineChild:
        child, loading = self._child, self._loading
        same = child is not None and child.alive and self._params == load
        if child is None or loading is None or not same or _has_failed(loading):
            await self.stop()
            self._child, self._params, self._loaded = self._new_child(), load, {}
            # A task of its own: a questioner who leaves while the model loads does not start it all over.
            loading = asyncio.create_task(self._load(self._child, load))
            loading.add_done_callback(_has_failed)
            self._loading = loading
        self._loading_listener = on_event
        try:
            loaded, self._loaded = await asyncio.shield(loading)
        finally:
            self._loading_listener = None
        return loaded

    def _new_child(self) -> EngineChild:
        return EngineChild(self._command, self._writer, self._metrics.new_engine())

    def _loading_event(self, event: str, data: dict[str, Any]) -> None:
        if self._loading_listener is not None:
            self._loading_listener(event, data)

    def _loading_stage(self, stage: str, message: str) -> None:
        self._loading_event("stage", {"stage": stage, "done": 0, "total": 0, "message": message})

    async def _load(self, child: EngineChild, load: LoadParams) -> tuple[EngineChild, dict[str, Any]]:
        """Load the model into `child`, or into another one where that dies of what it puts on the GPU.

        Each child says beforehand what the next one has to try, which is always less.
        """
        attempt = Attempt(self._loading_event, self._tell_fallback)
        while True:
            try:
                return child, await self._load_once(child, load, attempt)
            except UnavailableError as error:
                if child is not self._child:
                    # Loading was stopped, maybe before this child had begun.
                    await child.stop()
                    raise
                if not child.crashed or not attempt.next_after(error.message):
                    raise
            child = self._child = self._new_child()

    async def _load_once(self, child: EngineChild, load: LoadParams, attempt: Attempt) -> dict[str, Any]:
        await child.start()
        self._loading_stage("load", load.model_name)
        known = await asyncio.to_thread(self._verdicts.get, load.model_sha256)
        params = {**load.to_json(), "gate": known, "placement": attempt.placement}
        asking = child.send("load", params, attempt.on_event)
        try:
            loaded = await asyncio.wait_for(asking.answer, LOAD_SECONDS)
        except TimeoutError:
            child.kill("the model did not load in time")
            raise UnavailableError("the model did not load in time", hint="kvd logs") from None
        except KvdError as error:
            child.kill(f"the model was not loaded: {error.message}")
            raise
        if loaded.get("gate"):
            await asyncio.to_thread(self._verdicts.put, load.model_sha256, loaded["gate"])
        return loaded

    def _tell_fallback(self, message: str) -> None:
        _log.warning("engine: %s", message)
        self._loading_stage("fallback", message)

    async def stop(self) -> None:
        """Unload the model: end the child, at once if it does not end by itself in a few seconds."""
        child, loading = self._child, self._loading
        self._child, self._loading, self._params = None, None, None
        self._loaded, self._stats = {}, {}
        if child is not None:
            await child.stop()
        if loading is not None:
            await asyncio.wait({loading})

    async def stop_if_idle(self, seconds: float) -> bool:
        """Unload the model if no question came for `seconds`; true if it did."""
        idle = time.monotonic() - self._last_used
        if self._child is None or self._turn.locked() or idle < seconds:
            return False
        async with self._turn:
            await self.stop()
        return True

    @property
    def started(self) -> bool:
        """Whether there is a child, loaded or about to be."""
        return self._child is not None and self._child.alive

    @property
    def waiting(self) -> int:
        """Questions that wait for their turn."""
        return self._waiting

    async def state(self) -> dict[str, Any]:
        """`{"state": "stopped"|"loading"|"ready"|"busy", "waiting", "pid", ...}` and the child's own words.

        Never waits long: a busy child is described by what it said last.
        """
        child, loading = self._child, self._loading
        base = {"waiting": self._waiting, "pid": child.pid if child else None}
        if child is None or not child.alive or loading is None:
            return {"state": "stopped", **base, "pid": None}
        if not loading.done():
            return {"state": "loading", **base}
        if not self._turn.locked():
            await self._refresh_stats(child)
        state = "busy" if self._turn.locked() else "ready"
        return {"state": state, **base, **self._loaded, **self._stats}

    async def _refresh_stats(self, child: EngineChild) -> None:
        with suppress(TimeoutError, KvdError):
            await asyncio.wait_for(asyncio.shield(self._ask_for_stats(child)), _STATS_SECONDS)

    def _ask_for_stats(self, child: EngineChild) -> asyncio.Future[dict[str, Any]]:
        """Ask what the child holds; noted whenever it answers."""

        def note(answer: asyncio.Future[dict[str, Any]]) -> None:
            if child is self._child and not answer.cancelled() and not answer.exception():
                self._stats = answer.result()

        answer = child.send("stats", {}, _ignore).answer
        answer.add_done_callback(note)
        return answer


def _ignore(event: str, data: dict[str, Any]) -> None:
    """For requests whose events nobody wants."""


def _has_failed(task: asyncio.Task[Any]) -> bool:
    """Also takes note of the exception, which asyncio would otherwise report as forgotten."""
    return task.done() and (task.cancelled() or task.exception() is not None)
