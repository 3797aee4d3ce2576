"""From a question to an answer with sources: recall, the engine, and what the answer cites."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from kvd.config import Settings
from kvd.model_calls import Choices
from kvd.models.active import ActiveModel, active_model
from kvd.recall.only import EVERYTHING, Only
from kvd.service.clock import Clock
from kvd.service.conversations import Conversations, Talk
from kvd.service.drafts import Draft, dropped_draft
from kvd.service.engine import EngineAnswer, EngineClient
from kvd.service.engine_child import Event
from kvd.service.engine_keeper import LoadParams
from kvd.service.engine_params import ask_params, load_params
from kvd.service.follow_up import Used, blended, used_by
from kvd.service.paging import Decide, Pager
from kvd.service.repositories import Mend, Repositories, Tell
from kvd.service.reranking import CANDIDATES, ON_DEMAND_MS, Reranked, rerank
from kvd.service.threads import run_cancellable
from kvd.types import Hit, Progress

Emit = Callable[[dict[str, Any]], None]
"""Gets the values of `$/progress`, in the event loop."""

SettingsFor = Callable[[Path], Awaitable[Settings]]
"""Gives the settings for the repository at a root."""

TOKEN_KINDS = (
    "recalled",
    "resident",
    "reused_hot",
    "reused_cold",
    "recomputed",
    "prefilled",
    "fresh",
    "generated",
)
NOTHING_RELEVANT = "Nothing in this repository seems relevant to the question."


@dataclass(frozen=True, slots=True)
class Question:
    """A question as it was asked; None means the setting. `received` is `time.monotonic()` of its arrival."""

    text: str
    received: float
    top_k: int | None = None
    only: Only = EVERYTHING
    budget: int | None = None
    max_tokens: int | None = None
    reuse: bool | None = None
    rerank_ms: int | None = None
    memory: bool | None = None
    session: str | None = None
    """The session that it goes on with, or begins."""
    rounds: int | None = None


def stage_value(progress: Progress) -> dict[str, Any]:
    """`progress` as a value of `$/progress`."""
    return {"kind": "stage", **progress.to_json()}


class Notices:
    """What a request tells beside its result: when it comes up, as a stage, and again in the result."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._texts: list[str] = []

    def add(self, text: str) -> None:
        """ "" is nothing to tell."""
        if text:
            self._texts.append(text)
            self._emit(stage_value(Progress("notice", message=text)))

    def in_result(self) -> dict[str, Any]:
        """Members of the result."""
        return {"notices": self._texts} if self._texts else {}


def source_json(hit: Hit) -> dict[str, Any]:
    """A chunk as it was found."""
    chunk = hit.chunk
    return {
        "path": chunk.path,
        "start_line": chunk.start_line,
        "end_line": chunk.end_line,
        "symbol": chunk.scope,
        "language": chunk.language,
        "score": round(hit.score, 6),
    }


class Asker:
    """Answers questions through `engine`."""

    def __init__(self, repositories: Repositories, engine: EngineClient, conversations: Conversations) -> None:
        self._repositories = repositories
        self._engine = engine
        self._conversations = conversations

    async def ask(self, root: Path, question: Question, settings: Settings, emit: Emit) -> dict[str, Any]:
        """The result of `ask`. Tokens go to `emit` as they come; needs no model when nothing is relevant."""
        # From the start, because recall too would be slower beside that of a draft.
        with self._engine.drafts.making_way(), self._repositories.filler.making_way():
            if question.session is None:
                return await self._ask(root, question, settings, emit, None)
            async with self._conversations.going_on(root, question.session) as talk:
                return await self._ask(root, question, settings, emit, talk)

    async def _recall(
        self, root: Path, question: Question, wanted: int, talk: Talk | None, tell: Tell, mend: Mend
    ) -> list[Hit]:
        hits = await self._repositories.search(root, question.text, wanted, question.only, tell, mend)
        if talk is None or not talk.turns:
            return hits
        before = await self._repositories.search(root, talk.turns[-1].question, wanted, question.only, mend=mend)
        return blended(hits, before)[:wanted]

    async def _ask(
        self, root: Path, question: Question, settings: Settings, emit: Emit, talk: Talk | None
    ) -> dict[str, Any]:
        settings = _applied(question, settings)
        notices = Notices(emit)

        async def update() -> None:
            notices.add(await self._repositories.update_if_possible(root, settings, lambda p: emit(stage_value(p))))

        await update()
        wanted = max(settings.top_k, CANDIDATES) if settings.rerank_ms else settings.top_k
        hits = await self._recall(root, question, wanted, talk, notices.add, update)
        recalled = await self._conversations.recall(talk, question.text) if talk and settings.memory else []
        clock = Clock(question.received)
        if not hits and not recalled and not (talk and talk.turns):
            emit({"kind": "token", "text": NOTHING_RELEVANT})
            return {**_nothing_relevant(clock), "session": question.session, **notices.in_result()}
        model = await self._model_in_use(notices.add)
        quoted: dict[str, list[str]] = {}

        def on_event(event: str, data: dict[str, Any]) -> None:
            if event == "token":
                clock.token()
                emit({"kind": "token", "text": str(data.get("text", ""))})
            elif event == "stage":
                emit({"kind": "stage", **data})
            elif event == "quoted":
                quoted.update(data["blocks"])

        ranked = Reranked(hits)
        if settings.rerank_ms and question.reuse is not False:
            ranked = await rerank(self._engine, model, question.text, hits, settings, settings.rerank_ms, on_event)
        hits = ranked.hits[: settings.top_k]
        reuse = settings.reuse and question.reuse is not False
        pinned = await self._conversations.pinned(root) if talk else ""
        load = load_params(settings, model)
        prepare = partial(ask_params, question.text, reuse, talk=talk, pinned=pinned)

        pager = Pager(self._repositories, root, question.only, talk, self._deciding(load, prepare, on_event), emit)
        paged = await pager.page(hits, settings)
        hits = paged.hits
        pieces = [*hits, *(memory.hit for memory in recalled)]
        params = await asyncio.to_thread(prepare, settings=paged.settings, hits=pieces)
        try:
            answer = await self._engine.ask(load, params, on_event)
        finally:
            for index, keys in quoted.items():
                await self._conversations.note_quoted(recalled[int(index) - len(hits)], keys)
        times = clock.timings(ranked, paged.model_load_ms + answer.model_load_ms, answer.result)
        used = used_by(talk, hits, recalled, answer.result)
        result = _result(answer.result, answer.model, used, times, talk)
        if talk is not None:
            added = [pieces[int(index)].chunk for index in answer.result["chunks"]]
            known = (answer.model, model.sha256)
            await self._conversations.add(talk, question.text, result, added, answer.result, known, used)
        return {**result, **paged.in_result(result["sources"]), **notices.in_result()}

    def _deciding(self, load: LoadParams, prepare: Callable[..., dict[str, Any]], on_event: Event) -> Decide:
        async def decide(hits: Sequence[Hit], settings: Settings, choices: Choices) -> EngineAnswer:
            params = await asyncio.to_thread(prepare, settings=settings, hits=hits)
            return await self._engine.decide(load, {**params, "choices": asdict(choices)}, on_event)

        return decide

    async def _model_in_use(self, tell: Callable[[str], None]) -> ActiveModel:
        model = await asyncio.to_thread(active_model)
        if not model.chosen and not self._engine.started:
            tell(f"no model is set up: {model.name} answers, a very small one (kvd setup gets a better one)")
        return model

    async def judged(self, query: str, hits: list[Hit], settings: Settings, emit: Emit) -> Reranked:
        """What a search found, in the order that the model has a say in; loads the model where it is not loaded."""
        if not hits:
            return Reranked(hits)
        model = await asyncio.to_thread(active_model)

        def on_event(event: str, data: dict[str, Any]) -> None:
            if event == "stage":
                emit({"kind": "stage", **data})

        milliseconds = settings.rerank_ms or ON_DEMAND_MS
        return await rerank(self._engine, model, query, hits, settings, milliseconds, on_event)

    async def prefetch(self, client: int, repo: str, question: Question, settings_for: SettingsFor) -> dict[str, Any]:
        """The result of `prefetch`: recalls from the index as it is, loads no model, and gives way to questions."""
        # Before anything is waited for: drafts that come one upon the other stay in their order.
        async with self._engine.drafts.turn(client) as draft:
            root = await self._repositories.find_root(repo)
            settings = _applied(question, await settings_for(root))
            hits = list[Hit]()
            if not draft.dropped:
                hits = await self._repositories.search(root, question.text, settings.top_k, question.only)
            done = await self._bring(draft, question, settings, hits)
        return {"repo": str(root), "chunks": len(hits), **done}

    async def _bring(self, draft: Draft, question: Question, settings: Settings, hits: list[Hit]) -> dict[str, Any]:
        if draft.dropped:
            return dropped_draft(draft.dropped)
        if not self._engine.started:
            return dropped_draft("no-engine")
        load = load_params(settings, await asyncio.to_thread(active_model))

        def prepare(cancelled: Callable[[], bool]) -> dict[str, Any]:
            reuse = settings.reuse and question.reuse is not False
            return ask_params(question.text, reuse, settings, hits, lambda: cancelled() or bool(draft.dropped))

        return await self._engine.prefetch(draft, load, await run_cancellable(prepare))


def _applied(question: Question, settings: Settings) -> Settings:
    """The settings with what this question asks for itself. Without reuse nothing is loaded anew."""
    return replace(
        settings,
        reuse=settings.reuse or question.reuse is True,
        memory=settings.memory if question.memory is None else question.memory,
        rerank_ms=settings.rerank_ms if question.rerank_ms is None else question.rerank_ms,
        rounds=settings.rounds if question.rounds is None else question.rounds,
        top_k=question.top_k or settings.top_k,
        budget=question.budget or settings.budget,
        max_tokens=question.max_tokens or settings.max_tokens,
    )


def _result(
    result: dict[str, Any], model: str, used: Used, timings: dict[str, float], talk: Talk | None
) -> dict[str, Any]:
    return {
        "answer": str(result["answer"]),
        "model": model,
        "session": talk.session.name if talk else None,
        "conversation": _conversation(talk, result["conversation"]) if talk else None,
        "finish": str(result.get("finish", "stop")),
        "sources": [{**source_json(hit), "cited": is_cited, "label": label} for hit, label, is_cited in used.sources],
        "memories": [
            {**quote.to_json(), "cited": is_cited, "label": label} for quote, label, is_cited in used.memories
        ],
        "tokens": {kind: int(result["tokens"].get(kind, 0)) for kind in TOKEN_KINDS},
        "timings_ms": timings,
        "steps_ms": {str(name): float(value) for name, value in result.get("steps_ms", {}).items()},
    }


def _conversation(talk: Talk, told: dict[str, Any]) -> dict[str, int]:
    counts = {name: int(told[name]) for name in ("tokens", "resident", "loaded", "computed")}
    return {"turn": talk.number, **counts}


def _nothing_relevant(clock: Clock) -> dict[str, Any]:
    return {
        "answer": NOTHING_RELEVANT,
        "model": None,
        "session": None,
        "conversation": None,
        "finish": "stop",
        "sources": [],
        "memories": [],
        "tokens": dict.fromkeys(TOKEN_KINDS, 0),
        "timings_ms": clock.timings(Reranked([])),
        "steps_ms": {},
    }
