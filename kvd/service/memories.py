"""What was said before about a repository, recalled for a question."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kvd.recall.embed import default_embedder, label
from kvd.recall.index import as_int8
from kvd.recall.standing import standing
from kvd.recall.stems import query_terms, terms
from kvd.recall.words import WORDS_VERSION
from kvd.service.threads import run_cancellable
from kvd.sessions.memory_index import MemoryIndex, Waiting, Wanted
from kvd.sessions.records import Memory, Quote
from kvd.sessions.when import Span, read_times
from kvd.types import Chunk, Hit

IN_PROMPT = 2
"""Turns that a question recalls, at most."""
BEARS = 0.65
"""What a turn's score has to be for a question to recall it, see `tests/service/test_memories.py`."""
FOUND = 0.4
"""The same for who searches."""

_BATCH = 64
_LONGEST_QUESTION, _LONGEST_ANSWER = 300, 600
"""Characters of a recalled turn."""
_OF_TALKING = frozenset(
    query_terms(
        "answer ask asked conclude concluded conversation decide decided discuss discussed discussion earlier found"
        " learn learned mention mentioned previous previously remember said say saying talk talked tell told"
    )
)
"""Words about the conversation rather than its subject."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """`stale`: code that the answer cites has changed since."""

    memory: Memory
    stale: bool

    @property
    def quote(self) -> Quote:
        memory = self.memory
        return Quote(memory.session_id, memory.session, memory.number, memory.asked_at, memory.commit, self.stale)

    def to_json(self) -> dict[str, Any]:
        """As a search shows it."""
        memory = self.memory
        said = {"question": memory.question, "answer": shortened(memory.answer, _LONGEST_ANSWER)}
        return {**self.quote.to_json(), **said, "score": round(memory.score, 4)}

    @property
    def hit(self) -> Hit:
        """As a piece of a prompt. It has no lines; what stands in place of a path tells where it is from."""
        memory = self.memory
        day = datetime.fromtimestamp(memory.asked_at).date().isoformat()
        changed = " (the code has changed since)" if self.stale else ""
        origin = f"earlier conversation {memory.session}, turn {memory.number}, {day}{changed}"
        question = shortened(memory.question, _LONGEST_QUESTION)
        text = f"Question: {question}\nAnswer: {shortened(memory.answer, _LONGEST_ANSWER)}"
        return Hit(Chunk(origin, "", "", 0, 0, 0, 0, text), memory.score)


class Memories:
    """Searches the turns of the sessions in the file at `path`. Belongs to one event loop."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._index, self._clock = MemoryIndex(path), clock

    def catch_up(self) -> None:
        """Make what is not indexed yet, or was by another embedder, findable. Blocks."""
        embedder = default_embedder()
        maker = f"{WORDS_VERSION}/{label(embedder)}"
        while turns := self._index.waiting(maker, _BATCH):
            texts = [f"{turn.question}\n{turn.answer}" for turn in turns]
            vectors = as_int8(embedder.embed_documents(texts))
            self._index.put(maker, [_made(*each) for each in zip(turns, texts, vectors, strict=True)])

    async def find(
        self,
        root: Path,
        query: str,
        most: int,
        floor: float = FOUND,
        without: Collection[tuple[float, str]] = (),
        since: float | None = None,
        until: float | None = None,
    ) -> list[Memory]:
        """The turns of the repository that bear on a query, best first. Its words for times count, and `since` and
        `until` too; `without`: as for `MemoryIndex.find`."""
        wanted = self._wanted(query, since, until)

        def work(cancelled: Callable[[], bool]) -> list[Memory]:
            self.catch_up()
            return self._index.find(root, wanted, most, floor, without)

        return await run_cancellable(work)

    def _wanted(self, query: str, since: float | None, until: float | None) -> Wanted:
        now = self._clock()
        text, span = read_times(query, now)
        if since is not None or until is not None:
            first, end = (span.since, span.until) if span else (0.0, now + 1.0)
            span = Span(max(first, since or 0.0), min(end, end if until is None else until))
        words = query_terms(text)
        of_subject = [word for word in words if word not in _OF_TALKING]
        if of_subject or span is not None:
            words = of_subject
        vector = as_int8(default_embedder().embed_query(text)).tobytes()
        return Wanted(words, vector, span, now)

    async def judged(self, root: Path, memories: Sequence[Memory]) -> list[Recalled]:
        """Each with whether it is stale, by the index as it is. Raises `StoreError` where there is none."""
        pieces = {piece for memory in memories for piece in memory.cited}
        there = await asyncio.to_thread(standing, root, pieces)
        return [Recalled(memory, not there.issuperset(memory.cited)) for memory in memories]


def _made(turn: Waiting, text: str, vector: Any) -> tuple[Waiting, str, bytes]:
    return turn, " ".join(terms(text)), vector.tobytes()


def shortened(text: str, most: int) -> str:
    """The sentences at the beginning that fit so many characters; where the first does not, its words."""
    text = text.strip()
    if len(text) <= most:
        return text
    start = text[:most]
    end = max(start.rfind(mark) for mark in (". ", "! ", "? ", ".\n", "\n\n"))
    if end > 0:
        return start[: end + 1].rstrip()
    return f"{start.rsplit(None, 1)[0]} ..."
