"""Traces: which chunks a line of questions wants, one question after the other; recorded ones and generated ones.

A trace is a file of JSON lines, one for each question:

    {"question": VECTOR, "chunks": [{"id": TEXT, "tokens": N, "vector": VECTOR}]}

A vector is float16, little-endian, in base64, or null. Of a chunk that came before, `id` is enough.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kvd.errors import UsageError
from kvd.kv.bodies import Vector
from kvd.worker.protocol import decode_vector, encode_vector

Say = Callable[[str], None]

MOST_TOKENS = 8192
"""Of a recorded chunk: as many as the context has cells. The largest that kvd cuts has 3,200 bytes."""


@dataclass(frozen=True, slots=True)
class TraceChunk:
    """A chunk of code: whatever tells it from others, its body's tokens, its vector."""

    id: str
    tokens: int
    vector: Vector | None


@dataclass(frozen=True, slots=True)
class Ask:
    """One question; `chunks` are places in the trace's list, best first."""

    vector: Vector | None
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    chunks: Sequence[TraceChunk]
    asks: Sequence[Ask]

    def about(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "questions": len(self.asks),
            "chunks": len(self.chunks),
            "tokens": sum(self.chunks[number].tokens for ask in self.asks for number in ask.chunks),
            "distinct_tokens": sum(chunk.tokens for chunk in self.chunks),
        }


class TraceBuilder:
    """Puts a trace together question by question."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._chunks: list[TraceChunk] = []
        self._asks: list[Ask] = []

    def __len__(self) -> int:
        return len(self._asks)

    def known(self, name: str) -> TraceChunk | None:
        number = self._numbers.get(name)
        return None if number is None else self._chunks[number]

    def add(self, question: Vector | None, chunks: Sequence[TraceChunk]) -> None:
        numbers = []
        for chunk in chunks:
            if chunk.id not in self._numbers:
                self._numbers[chunk.id] = len(self._chunks)
                self._chunks.append(chunk)
            numbers.append(self._numbers[chunk.id])
        # Copies of the same code are one body.
        self._asks.append(Ask(question, tuple(dict.fromkeys(numbers))))

    def trace(self, name: str) -> Trace:
        return Trace(name, self._chunks, self._asks)


def read_trace(file: Path) -> Trace:
    """A recorded trace. Raises `UsageError` for a file that is not as described above, or has no question."""
    builder = TraceBuilder()
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"can't read {file}: {error}", hint="see kvd/bench/traces.py") from error
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            builder.add(_vector(entry["question"]), [_chunk(item, builder) for item in entry["chunks"]])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"{file}, line {number}: not a trace: {error}", hint="see kvd/bench/traces.py") from error
    trace = builder.trace(file.stem)
    if not trace.chunks:
        raise UsageError(f"{file} holds no questions that want code", hint="see kvd/bench/traces.py")
    vectors = [*(ask.vector for ask in trace.asks), *(chunk.vector for chunk in trace.chunks)]
    if len({len(vector) for vector in vectors if vector is not None}) > 1:
        raise UsageError(f"{file} holds vectors of different lengths", hint="record it with one embedder")
    return trace


def _chunk(item: dict[str, Any], builder: TraceBuilder) -> TraceChunk:
    known = builder.known(str(item["id"]))
    if known is not None and "tokens" not in item:
        return known
    tokens = item["tokens"]
    if type(tokens) is not int or not 1 <= tokens <= MOST_TOKENS:
        raise ValueError(f"a chunk's tokens must be a whole number from 1 to {MOST_TOKENS:,}")
    return TraceChunk(str(item["id"]), tokens, _vector(item.get("vector")))


def _vector(text: str | None) -> Vector | None:
    if text is None:
        return None
    vector = decode_vector(text)
    if not vector.size or not np.isfinite(vector).all():
        raise ValueError("a vector needs values, all of them finite")
    return vector


def write_trace(trace: Trace, file: Path) -> None:
    """What `read_trace` reads."""
    file.parent.mkdir(parents=True, exist_ok=True)
    seen: set[int] = set()
    with file.open("w", encoding="utf-8") as out:
        for ask in trace.asks:
            chunks = []
            for number in ask.chunks:
                chunk = trace.chunks[number]
                entry: dict[str, Any] = {"id": chunk.id}
                if number not in seen:
                    entry |= {"tokens": chunk.tokens, "vector": _text(chunk.vector)}
                seen.add(number)
                chunks.append(entry)
            out.write(json.dumps({"question": _text(ask.vector), "chunks": chunks}) + "\n")


def _text(vector: Vector | None) -> str | None:
    return None if vector is None else encode_vector(vector)


class Library(Protocol):
    """The questions that can be asked about one repository, in the order of its history, and what they recall."""

    name: str

    @property
    def vectors(self) -> Vector:
        """`[questions, dimension]`."""
        ...

    def recall(self, number: int) -> Sequence[TraceChunk]: ...


@dataclass(frozen=True, slots=True)
class Habits:
    """How somebody asks. Nobody has recorded it; these are assumptions, fixed before any policy was tried.

    A session is a few questions in a row: `session` on average, of which each after the first is one of the `near`
    questions that are most like the one before or, with probability `again`, one that was asked in an earlier session.
    The next session is about what lies up to `step` questions further in the repository's history, or with probability
    `jump` anywhere in it. With probability `leave` it is about another repository: with probability `back` one that was
    asked about before, the latest ones more likely, where it goes on from where it was left.
    """

    session: float = 5.0
    near: int = 20
    again: float = 0.1
    step: int = 10
    jump: float = 0.2
    leave: float = 0.15
    back: float = 0.7


def generate(name: str, libraries: Sequence[Library], questions: int, seed: int, habits: Habits = Habits()) -> Trace:
    """A trace of so many questions; the same seed and libraries give the same one.

    Raises `UsageError` where no question recalls anything.
    """
    counts = [len(library.vectors) for library in libraries]
    if not any(
        library.recall(number) for library, count in zip(libraries, counts, strict=True) for number in range(count)
    ):
        raise UsageError(f"none of {sum(counts):,} questions recalls any code", hint="give --repo a clone with code")
    random, builder = np.random.default_rng(seed), TraceBuilder()
    for library, number in _asked(random, libraries, habits):
        chunks = library.recall(number)
        if chunks:
            builder.add(library.vectors[number], chunks)
        if len(builder) == questions:
            break
    return builder.trace(name)


def _asked(random: np.random.Generator, libraries: Sequence[Library], habits: Habits) -> Iterator[tuple[Library, int]]:
    """Question after question, without end."""
    places = [int(random.integers(len(library.vectors))) for library in libraries]
    before: list[list[int]] = [[] for _ in libraries]
    visited = [int(random.integers(len(libraries)))]
    while True:
        if random.random() < habits.leave:
            _visit(random, visited, len(libraries), habits)
        here = visited[-1]
        library = libraries[here]
        count = len(library.vectors)
        far = random.random() < habits.jump
        places[here] = (
            int(random.integers(count)) if far else (places[here] + int(random.integers(habits.step))) % count
        )
        session: list[int] = []
        for number in _session(random, library, places[here], before[here], habits):
            session.append(number)
            yield library, number
        before[here] += session


def _visit(random: np.random.Generator, visited: list[int], count: int, habits: Habits) -> None:
    """Move another repository to the end of `visited`, which has the latest one last."""
    others = [number for number in visited if number != visited[-1]]
    fresh = [number for number in range(count) if number not in visited]
    if others and (not fresh or random.random() < habits.back):
        # Half of the returns are to the one that was left last, a quarter to the one before it, and so on.
        chosen = others[-min(len(others), int(random.geometric(0.5)))]
        visited.remove(chosen)
    elif fresh:
        chosen = fresh[int(random.integers(len(fresh)))]
    else:
        return
    visited.append(chosen)


def _session(
    random: np.random.Generator, library: Library, start: int, before: Sequence[int], habits: Habits
) -> Iterator[int]:
    """The questions of one session."""
    asked = {start}
    last = start
    yield start
    for _ in range(int(random.geometric(1 / habits.session)) - 1):
        if before and random.random() < habits.again:
            last = before[int(random.integers(len(before)))]
        else:
            nearness = library.vectors @ library.vectors[last]
            nearest = [int(number) for number in np.argsort(-nearness, kind="stable")[: habits.near + len(asked)]]
            choice = [number for number in nearest if number not in asked][: habits.near]
            if not choice:
                return
            last = choice[int(random.integers(len(choice)))]
        asked.add(last)
        yield last
