"""One loaded engine child: started, given less where it does not fit the GPU, replaced when it has died."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvd.errors import KvdError, UnavailableError
from kvd.service.attempt import Attempt
from kvd.service.engine_child import EngineChild, Event
from kvd.service.metrics import Metrics
from kvd.service.store_writer import StoreWriter
from kvd.service.verdicts import Verdicts

_log = logging.getLogger(__name__)

LOAD_SECONDS = 1800.0
_DEATHS_SECONDS, _DEATHS, _LONGEST_PAUSE = 300.0, 2, 60.0
"""Children that die more often than that within a time are replaced after a pause, twice as long each time."""


@dataclass(frozen=True, slots=True)
class LoadParams:
    """What a child is loaded with; another value of any of these needs another child."""

    model_path: str
    model_name: str
    model_sha256: str
    store_path: str
    n_ctx: int
    parallel: int
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


class EngineKeeper:
    """Belongs to one event loop. The child is started by the first `loaded`."""

    def __init__(self, command: Sequence[str], writer: StoreWriter, verdicts: Verdicts, metrics: Metrics) -> None:
        self._command, self._writer, self._verdicts, self._metrics = command, writer, verdicts, metrics
        self.child: EngineChild | None = None
        """The one that is loaded or about to be; it may have died."""
        self.facts: dict[str, Any] = {}
        """What the child said of itself when it was loaded."""
        self._starting = asyncio.Lock()
        self._task: asyncio.Task[tuple[EngineChild, dict[str, Any]]] | None = None
        self._listeners: list[Event] = []
        self._deaths: list[float] = []
        self._params: LoadParams | None = None

    @property
    def loading(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def model_sha256(self) -> str | None:
        """That of the model that the child has, or is about to."""
        return self._params.model_sha256 if self._params else None

    def ready(self, load: LoadParams) -> bool:
        """Whether `loaded` need not wait."""
        task = self._task
        usable = self.child is not None and self.child.alive and self._params == load
        return usable and task is not None and task.done() and not _has_failed(task)

    async def loaded(self, load: LoadParams, on_event: Event) -> EngineChild:
        """A child with the model of `load`; the events of loading it go to `on_event`. Raises `KvdError`."""
        self._listeners.append(on_event)
        try:
            async with self._starting:
                loading = await self._start(load)
            child, self.facts = await asyncio.shield(loading)
        finally:
            self._listeners.remove(on_event)
        return child

    async def _start(self, load: LoadParams) -> asyncio.Task[tuple[EngineChild, dict[str, Any]]]:
        """The loading of a child that lives, and has this model or is about to."""
        child, loading = self.child, self._task
        same = child is not None and child.alive and self._params == load
        if loading is not None and same and not _has_failed(loading):
            return loading
        await self.stop()
        await self._pause(child)
        self.child, self._params, self.facts = self._new_child(), load, {}
        # A task of its own: a questioner who leaves while the model loads does not start it all over.
        self._task = asyncio.create_task(self._load(self.child, load))
        self._task.add_done_callback(_has_failed)
        return self._task

    async def _pause(self, child: EngineChild | None) -> None:
        """Wait a while where children die one after the other, so that they don't take all of the machine."""
        now = time.monotonic()
        deaths = [*self._deaths, now] if child is not None and child.died else self._deaths
        self._deaths = [death for death in deaths if now - death < _DEATHS_SECONDS]
        if (more := len(self._deaths) - _DEATHS) > 0:
            pause = min(2.0 ** (more - 1), _LONGEST_PAUSE)
            self._tell_stage("restart", f"the engine died {len(self._deaths)} times, next try in {pause:.0f} s")
            await asyncio.sleep(pause)

    def _new_child(self) -> EngineChild:
        return EngineChild(self._command, self._writer, self._metrics.new_engine())

    def _tell(self, event: str, data: dict[str, Any]) -> None:
        for listener in self._listeners:
            listener(event, data)

    def _tell_stage(self, stage: str, message: str) -> None:
        self._tell("stage", {"stage": stage, "done": 0, "total": 0, "message": message})

    async def _load(self, child: EngineChild, load: LoadParams) -> tuple[EngineChild, dict[str, Any]]:
        """Load the model into `child`, or into another one where that dies of what it puts on the GPU.

        Each child says beforehand what the next one has to try, which is always less.
        """
        attempt = Attempt(self._tell, self._tell_fallback)
        while True:
            try:
                return child, await self._load_once(child, load, attempt)
            except UnavailableError as error:
                if child is not self.child:
                    # Loading was stopped, maybe before this child had begun.
                    await child.stop()
                    raise
                if not child.crashed or not attempt.next_after(error.message):
                    raise
            child = self.child = self._new_child()

    async def _load_once(self, child: EngineChild, load: LoadParams, attempt: Attempt) -> dict[str, Any]:
        await child.start()
        self._tell_stage("load", load.model_name)
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
        self._tell_stage("fallback", message)

    async def stop(self) -> None:
        """Unload the model: end the child, at once if it does not end by itself in a few seconds."""
        child, loading = self.child, self._task
        self.child, self._task, self._params = None, None, None
        self.facts = {}
        if child is not None:
            await child.stop()
        if loading is not None:
            await asyncio.wait({loading})


def _has_failed(task: asyncio.Task[Any]) -> bool:
    """Also takes note of the exception, which asyncio would otherwise report as forgotten."""
    return task.done() and (task.cancelled() or task.exception() is not None)
