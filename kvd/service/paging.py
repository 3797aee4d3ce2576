"""Code that the model fetches itself before it answers: it makes calls, and what they bring joins the prompt."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kvd.config import Settings
from kvd.errors import ModelError, StoreError, UsageError
from kvd.model_calls import ANSWER, MEMORY, OPEN, PAGING, RECALL, Call, Choices, read_call
from kvd.recall.only import Only
from kvd.recall.opened import opened
from kvd.recall.unshown import unshown_names
from kvd.service.conversations import Talk
from kvd.service.engine import EngineAnswer
from kvd.service.repositories import Repositories
from kvd.types import Hit, Progress

_log = logging.getLogger(__name__)

MOST_PIECES = 3
"""That one call brings in."""
_MOST_NAMES = 24
"""That the model can choose from."""
_SHARE = 2
"""What it brings in may take so much of the budget, the n-th part, on top of it."""
_LONGEST_S = 60.0
"""Once the calls have taken so long the model is not asked for another."""

Decide = Callable[[Sequence[Hit], Settings, Choices], Awaitable[EngineAnswer]]
"""Has the model choose a call, given the hits and the settings."""


@dataclass(frozen=True, slots=True)
class Paged:
    """`hits` with what was fetched behind them, and `settings` whose budget has room for it."""

    hits: list[Hit]
    settings: Settings
    rounds: list[dict[str, Any]] = field(default_factory=list)
    proposals: list[dict[str, Any]] = field(default_factory=list)
    model_load_ms: float = 0.0
    more: int = 0
    """Tokens by which a round that brings something in raises the budget."""

    def in_result(self, sources: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Members of the result, whose `sources` are given; none where no calls were wanted."""
        if not self.settings.rounds:
            return {}
        # What was fetched may have been too much for the prompt.
        there = [_place_in(source) for source in sources]
        rounds = [{**made, "pieces": [piece for piece in made["pieces"] if piece in there]} for made in self.rounds]
        return {"rounds": rounds, "proposals": self.proposals}


@dataclass(frozen=True, slots=True)
class Pager:
    """Fetches for one question: from the repository at `root`, of the files that the question is confined to."""

    repositories: Repositories
    root: Path
    only: Only
    talk: Talk | None
    decide: Decide
    emit: Callable[[dict[str, Any]], None]

    async def page(self, hits: list[Hit], settings: Settings) -> Paged:
        """Let the model make up to `settings.rounds` calls. Where it can't, the hits are those that were recalled.

        It may open files where there is no name to recall: given both, a small model opens files, and mostly others
        than the one that it needs (`kvd bench hops`).
        """
        paged, began = Paged(hits, settings, more=settings.budget // _SHARE), time.monotonic()
        for _ in range(settings.rounds):
            if not paged.hits or time.monotonic() - began > _LONGEST_S:
                break
            started = time.monotonic()
            try:
                unshown = await asyncio.to_thread(unshown_names, self.root, paged.hits, _MOST_NAMES)
                files = dict.fromkeys(hit.chunk.path for hit in paged.hits)
                calls = ((RECALL,) if unshown else PAGING) + (MEMORY if self.talk else ())
                chosen = await self.decide(paged.hits, paged.settings, Choices(calls, tuple(unshown), tuple(files)))
            except (ModelError, StoreError, UsageError) as error:
                _log.warning("the model was not asked for calls: %s", error.message)
                break
            paged = replace(paged, model_load_ms=paged.model_load_ms + chosen.model_load_ms)
            call = read_call(str(chosen.result["answer"]))
            if call is None or call.name == ANSWER:
                break
            paged = await self._done(call, self._placed(paged.hits, chosen), paged)
            paged.rounds[-1]["ms"] = round((time.monotonic() - started) * 1000 - chosen.model_load_ms, 1)
        return paged

    async def _done(self, call: Call, placed: list[Hit], paged: Paged) -> Paged:
        """What comes of a call. What stands in the prompt already keeps its place, so that its cells serve again."""
        made = {"call": call.name, "argument": call.argument, "lines": list(call.lines) if call.name == OPEN else None}
        if call.name in MEMORY:
            proposal = {"call": call.name, "note": call.argument}
            self.emit({"kind": "proposal", **proposal})
            rounds = [*paged.rounds, {**made, "pieces": []}]
            return replace(paged, rounds=rounds, proposals=[*paged.proposals, proposal])
        known = {_place(hit) for hit in placed}
        new = [hit for hit in await self._fetch(call, len(known)) if _place(hit) not in known][:MOST_PIECES]
        count = f"{len(new)} more piece{'' if len(new) == 1 else 's'}"
        self.emit(
            {"kind": "stage", **Progress("notice", message=f"{call}: {count if new else 'nothing new'}").to_json()}
        )
        rounds = [*paged.rounds, {**made, "pieces": [_place_in(asdict(hit.chunk)) for hit in new]}]
        if not new:
            return replace(paged, rounds=rounds)
        settings = replace(paged.settings, budget=paged.settings.budget + paged.more)
        return replace(paged, hits=[*placed, *new], settings=settings, rounds=rounds)

    async def _fetch(self, call: Call, known: int) -> list[Hit]:
        wanted = known + MOST_PIECES
        try:
            if call.name == OPEN:
                return await asyncio.to_thread(opened, self.root, call.argument, call.lines, wanted, self.only)
            return await self.repositories.search(self.root, call.argument, wanted, self.only)
        except StoreError as error:
            _log.warning("a call found no index: %s", error.message)
            return []

    def _placed(self, hits: list[Hit], chosen: EngineAnswer) -> list[Hit]:
        """Those that stand in the prompt, or have since earlier turns, in its order."""
        present = self.talk.present(hits) if self.talk else {}
        return [hits[index] for index in sorted({*map(int, chosen.result["chunks"]), *present})]


def _place(hit: Hit) -> tuple[str, int, int]:
    return hit.chunk.path, hit.chunk.start_line, hit.chunk.end_line


def _place_in(piece: dict[str, Any]) -> dict[str, Any]:
    return {name: piece[name] for name in ("path", "start_line", "end_line")}
