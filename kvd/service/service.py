"""Everything that the daemon can be asked to do: the composition of indexes, engine and store."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvd import paths
from kvd.config import Settings, load_settings
from kvd.errors import KvdError, NoModelError, RepositoryError
from kvd.kv.store import BlockStore
from kvd.models.active import active_model
from kvd.recall.only import EVERYTHING, Only
from kvd.recall.overview import overview
from kvd.service.asker import Asker, Emit, Notices, Question, source_json, stage_value
from kvd.service.conversations import Conversations
from kvd.service.engine import COMMAND, EngineClient
from kvd.service.forgotten import remove_forgotten
from kvd.service.indexer import known_indexes
from kvd.service.metrics import Metrics
from kvd.service.repositories import Repositories
from kvd.service.reranking import CANDIDATES, Reranked
from kvd.service.store_writer import StoreWriter
from kvd.service.unattended import Unattended
from kvd.service.verdicts import Verdicts
from kvd.service.watching import Watching
from kvd.sessions.store import SessionStore
from kvd.types import IndexSummary, ProgressCallback

_log = logging.getLogger(__name__)

_STATUS_SECONDS = 1.0
_FLUSH_SECONDS = 60.0
_DAY_SECONDS = 86_400.0


class Service:
    """Belongs to one event loop. Everything blocking runs in threads; every method may be cancelled."""

    def __init__(self, engine_command: Sequence[str] = COMMAND) -> None:
        self._repositories = Repositories()
        self._writer = StoreWriter(paths.store_file(), lambda: load_settings().store_bytes)
        self._verdicts = Verdicts(paths.gate_file())
        self.metrics = Metrics()
        self._engine = EngineClient(self._writer, self._verdicts, self.metrics, engine_command)
        self.conversations = Conversations(SessionStore(paths.sessions_file()), self._engine, self._writer, overview)
        self._asker = Asker(self._repositories, self._engine, self.conversations)
        self._sessions_checked = -math.inf
        self._watching = Watching(self._repositories, self.metrics)
        self._unattended = Unattended(self._update_unattended)

    def start(self) -> None:
        """Watch the repositories that were used lately."""
        self._watching.start()

    async def index(self, path: str, background: bool, emit: Emit) -> dict[str, Any]:
        """Index the repository that `path` is in; in the background: only start with it."""
        root = await self._repositories.find_root(path)
        settings = await _settings_for(root)
        if not background:
            return (await self._update(root, settings, lambda p: emit(stage_value(p)))).to_json()
        self._unattended.want(root)
        return {"repo": str(root), "background": True}

    async def _update(self, root: Path, settings: Settings, on_progress: ProgressCallback) -> IndexSummary:
        summary = await self._repositories.update(root, settings, on_progress)
        self._watching.used(root)
        return summary

    async def _update_unattended(self, root: Path) -> IndexSummary | None:
        summary = await self._watching.refresh(root, await _settings_for(root))
        self._watching.used(root)
        return summary

    async def search(
        self,
        query: str,
        repo: str,
        top_k: int | None,
        emit: Emit,
        by_model: bool = False,
        only: Only = EVERYTHING,
        rerank_ms: int | None = None,
    ) -> dict[str, Any]:
        """Ranked chunks of what `only` leaves. Updates the index first; needs no model unless that is to judge too."""
        received = time.monotonic()
        root = await self._repositories.find_root(repo)
        settings = await _settings_for(root)
        if rerank_ms is not None:
            settings = replace(settings, rerank_ms=rerank_ms)
        notices = Notices(emit)

        async def update() -> None:
            notices.add(await self._repositories.update_if_possible(root, settings, lambda p: emit(stage_value(p))))

        with self._watching.making_way():
            await update()
            self._watching.used(root)
            started = time.monotonic()
            wanted = top_k or settings.top_k
            most = max(wanted, CANDIDATES) if by_model else wanted
            hits = await self._repositories.search(root, query, most, only, notices.add, update)
            recalled = time.monotonic()
            ranked = await self._asker.judged(query, hits, settings, emit) if by_model else Reranked(hits)
        times = {"recall": (recalled - started) * 1000, "total": (time.monotonic() - received) * 1000}
        if by_model:
            times |= {"rerank": ranked.ms, "model_load": ranked.model_load_ms}
        return {
            "query": query,
            "repo": str(root),
            "sources": [source_json(hit) for hit in ranked.hits[:wanted]],
            "timings_ms": {name: round(value, 1) for name, value in times.items()},
            **({"judged": ranked.judged} if by_model else {}),
            **notices.in_result(),
        }

    async def search_sessions(
        self, repo: str, query: str, limit: int, since: int | None, until: int | None, emit: Emit
    ) -> dict[str, Any]:
        """What was said before about the repository that `repo` is in. Updates its index, to say what is stale."""
        received = time.monotonic()
        root = await self._repositories.find_root(repo)
        settings, notices = await _settings_for(root), Notices(emit)
        with self._watching.making_way():
            notices.add(await self._repositories.update_if_possible(root, settings, lambda p: emit(stage_value(p))))
            self._watching.used(root)
            started = time.monotonic()
            found = await self.conversations.search(root, query, limit, since, until)
        now = time.monotonic()
        times = {"recall": (now - started) * 1000, "total": (now - received) * 1000}
        return {
            "query": query,
            "repo": str(root),
            "results": [memory.to_json() for memory in found],
            "timings_ms": {name: round(value, 1) for name, value in times.items()},
            **notices.in_result(),
        }

    async def find_root(self, repo: str) -> Path:
        """The root of the repository that `repo` is in."""
        return await self._repositories.find_root(repo)

    async def ask(self, repo: str, question: Question, emit: Emit) -> dict[str, Any]:
        """Answer `question` from the repository that `repo` is in."""
        root = await self._repositories.find_root(repo)
        try:
            with self._watching.making_way():
                result = await self._asker.ask(root, question, await _settings_for(root), emit)
        finally:
            self._watching.used(root)
        # Nothing is awaited from here on, so that what is counted as answered is answered.
        self.metrics.count_answer(result)
        return result

    async def prefetch(self, client: int, repo: str, draft: Question) -> dict[str, Any]:
        """Bring the code that `draft` recalls into memory, if the engine has nothing else to do."""
        return await self._asker.prefetch(client, repo, draft, _settings_for)

    def left(self, client: int) -> None:
        """A client is gone: nothing is kept for it."""
        self._engine.drafts.release(client)

    async def forget(self, path: str) -> dict[str, Any]:
        """Remove the index of the repository that `path` is in, which need not exist any more."""
        root = await asyncio.to_thread(_nominal_root, Path(path))
        self._watching.forget(root)
        freed = await self._repositories.forget(root)
        if freed is None:
            raise RepositoryError(f"there is no index of {root}", hint="kvd status")
        return {"repo": str(root), "freed_bytes": freed}

    async def gc(self) -> dict[str, Any]:
        """Bring the KV store under its cap, and remove indexes of folders that are gone."""
        indexes = await asyncio.to_thread(remove_forgotten)
        done = await asyncio.to_thread(self._writer.gc)
        removed = {"cap": done.cap, "foreign": done.foreign, "damaged": done.damaged, "full_disk": done.full_disk}
        store = await self._store_state()
        return {"freed_bytes": done.freed_bytes, "removed": removed, "indexes": indexes, "store": store}

    async def status(self) -> dict[str, Any]:
        """What is there and what goes on; answers within about a second whatever goes on."""
        settings, fault = _settings_or_fault()
        model = await _within(asyncio.to_thread(self._model_state))
        engine = await self._engine.state()
        indexes = await _within(asyncio.to_thread(known_indexes))
        store = await self._store_state(settings)
        self.metrics.observe(engine, store, indexes)
        self.metrics.observe_watching(self._watching.counts())
        return {
            "model": model,
            "engine": engine,
            "reuse_setting": settings.reuse,
            "indexing": self._repositories.busy,
            "indexes": [{**index, "watch": self._watching.state(index["repo"])} for index in indexes or []],
            "embedder_error": self._repositories.filler.fault,
            "store": store,
            "metrics": self.metrics.to_json(),
            "settings_error": fault,
        }

    async def exposition(self) -> dict[str, Any]:
        """The metrics as they are now, as text and as in the status."""
        state = await self.status()
        return {"text": self.metrics.exposition(), "metrics": state["metrics"]}

    def _model_state(self) -> dict[str, Any] | None:
        try:
            model = active_model()
        except NoModelError:
            return None
        except KvdError as error:
            return {"name": None, "path": None, "sha256": None, "error": error.message, "gate": None}
        gate = self._verdicts.get(model.sha256)
        return {"name": model.name, "path": str(model.path), "sha256": model.sha256, "error": "", "gate": gate}

    async def _store_state(self, settings: Settings | None = None) -> dict[str, Any]:
        settings = settings or _settings_or_fault()[0]
        stored = await _within(asyncio.to_thread(_read_store, self._writer.since)) or {}
        return {**stored, **self._writer.counts(), "cap_bytes": settings.store_bytes}

    async def unload_if_idle(self) -> None:
        """Unload a model that nobody asked anything for as long as the settings say."""
        minutes = _settings_or_fault()[0].idle_minutes
        if minutes and await self._engine.stop_if_idle(minutes * 60):
            _log.info("unloaded the model after %d idle minutes", minutes)
        await self._repositories.unload_if_idle(minutes * 60 or math.inf)

    async def delete_old_sessions(self) -> None:
        """Once a day: delete the sessions that were not used for as long as the settings say."""
        days = _settings_or_fault()[0].session_days
        if days and time.monotonic() - self._sessions_checked >= _DAY_SECONDS:
            self._sessions_checked = time.monotonic()
            await self.conversations.delete_unused(days)

    @property
    def busy(self) -> bool:
        """Whether something goes on in the background that was asked for. Watching is not, nor what comes of it."""
        return self._unattended.busy or self._repositories.filler.busy

    def daemon_idle_minutes(self) -> int:
        """For how long a daemon without clients stays; 0: forever."""
        return _settings_or_fault()[0].daemon_idle_minutes

    async def close(self) -> None:
        """Stop what runs in the background, unload the model, write what is worth keeping."""
        await self._unattended.close()
        await self._watching.close()
        await self._repositories.close()
        await self._engine.stop()
        await asyncio.to_thread(self._writer.close, _FLUSH_SECONDS)


def _nominal_root(path: Path) -> Path:
    folder = Path(os.path.realpath(path))
    return paths.git_root(folder) or folder


async def _settings_for(root: Path) -> Settings:
    """With what the repository sets; not in the event loop, as its file may be on a slow file system."""
    return await asyncio.to_thread(load_settings, root)


def _settings_or_fault() -> tuple[Settings, str]:
    try:
        return load_settings(), ""
    except KvdError as error:
        return Settings(), error.message


def _read_store(since: float) -> dict[str, Any]:
    store = BlockStore(paths.store_file(), readonly=True, since=since)
    try:
        return store.stats()
    finally:
        store.close()


async def _within(work: Any) -> Any:
    """The result of `work`, or None when it takes too long or fails: a status is never an error."""
    with suppress(Exception):
        return await asyncio.wait_for(work, _STATUS_SECONDS)
    return None
