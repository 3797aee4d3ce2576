"""`kvd bench hops`: does the model find by calls of its own what the question's words do not find?

Each file of questions is an object `{name, url, revision, questions: [{question, path, holds}]}`: the answer is where
`path` has the text `holds`, which code that the question's words find leads to. Every question is answered with a few
pieces of code and up to `ROUNDS` calls of the model; what stood in the prompt before and after each one is held against
recall that finds as many pieces at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from kvd.bench.checkouts import checked_out
from kvd.bench.traces import Say
from kvd.errors import UsageError
from kvd.service.asker import Question
from kvd.service.service import Service

ROUNDS = 2
PIECES = 3
"""That recall finds for the prompt."""
BUDGET = 1_000


@dataclass(frozen=True, slots=True)
class Hop:
    text: str
    path: str
    holds: str

    def line(self, root: Path) -> int:
        """Where the answer is, from 1. Raises `UsageError` where the text is not there, once."""
        before, found, _ = (root / self.path).read_text("utf-8").partition(self.holds)
        if not found:
            raise UsageError(f"{self.path} does not hold {self.holds!r}", hint="take the revision that the set names")
        return before.count("\n") + 1


@dataclass(frozen=True, slots=True)
class HopSet:
    name: str
    url: str
    revision: str
    hops: tuple[Hop, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the right file, and the right lines, were in the prompt, after each number of rounds from 0 on; and
    whether they were with as many pieces recalled at once. `pieces` are the numbers of these."""

    repository: str
    question: str
    calls: list[str]
    pieces: list[int]
    file: list[bool]
    lines: list[bool]
    recalled_file: list[bool]
    recalled_lines: list[bool]
    ms: list[float]


def read_sets(folder: Path) -> list[HopSet]:
    """Raises `UsageError` for a folder that is not as described above."""
    try:
        sets = [_read_set(json.loads(file.read_text("utf-8"))) for file in sorted(folder.glob("*.json"))]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder} has no questions: {error}", hint="see tests/bench/hops") from error
    if not sets:
        raise UsageError(f"{folder} has no questions", hint="see tests/bench/hops")
    return sets


def _read_set(data: dict[str, Any]) -> HopSet:
    hops = tuple(Hop(entry["question"], entry["path"], entry["holds"]) for entry in data["questions"])
    return HopSet(data["name"], data["url"], data["revision"], hops)


def measure(sets: Sequence[HopSet], checkouts: Path, limit: int, command: str, say: Say) -> dict[str, Any]:
    """Everything as one JSON object; at most `limit` questions of each repository, 0: all."""
    return asyncio.run(_measure(sets, checkouts, limit, command, say))


async def _measure(sets: Sequence[HopSet], checkouts: Path, limit: int, command: str, say: Say) -> dict[str, Any]:
    service, outcomes = Service(), list[Outcome]()
    try:
        for one in sets:
            root = checked_out(one.name, one.url, one.revision, checkouts)
            for hop in one.hops[: limit or None]:
                outcomes.append(await _asked(service, one.name, root, hop))
                say(_line(outcomes[-1]))
    finally:
        await service.close()
    return {"command": command, "pieces": PIECES, "budget": BUDGET, "questions": [asdict(item) for item in outcomes]}


def _line(outcome: Outcome) -> str:
    calls = "; ".join(outcome.calls) or "no call"
    found = [
        "lines" if line else "file" if file else "no" for file, line in zip(outcome.file, outcome.lines, strict=True)
    ]
    return f"{outcome.repository}: {outcome.question} {calls}: {', '.join(found)}"


async def _asked(service: Service, name: str, root: Path, hop: Hop) -> Outcome:
    line = hop.line(root)
    asked = Question(hop.text, time.monotonic(), top_k=PIECES, budget=BUDGET, max_tokens=1, rerank_ms=0, rounds=ROUNDS)
    result = await service.ask(str(root), asked, lambda value: None)
    rounds = result["rounds"]
    fetched = [[piece for made in rounds[:number] for piece in made["pieces"]] for number in range(ROUNDS + 1)]
    start = [_place(source) for source in result["sources"] if _place(source) not in map(_place, fetched[-1])]
    prompts = [[*start, *map(_place, pieces)] for pieces in fetched]
    most = max(map(len, prompts))
    found = await service.search(hop.text, str(root), max(most, 1), lambda value: None)
    recalled = [[_place(source) for source in found["sources"]][: len(prompt)] for prompt in prompts]
    return Outcome(
        name,
        hop.text,
        [f"{made['call']}({made['argument']})" for made in rounds],
        [len(prompt) for prompt in prompts],
        [_has_file(prompt, hop.path) for prompt in prompts],
        [_has_line(prompt, hop.path, line) for prompt in prompts],
        [_has_file(prompt, hop.path) for prompt in recalled],
        [_has_line(prompt, hop.path, line) for prompt in recalled],
        [made["ms"] for made in rounds],
    )


Place = tuple[str, int, int]


def _place(piece: dict[str, Any]) -> Place:
    return str(piece["path"]), int(piece["start_line"]), int(piece["end_line"])


def _has_file(prompt: Sequence[Place], path: str) -> bool:
    return any(place[0] == path for place in prompt)


def _has_line(prompt: Sequence[Place], path: str, line: int) -> bool:
    return any(place[0] == path and place[1] <= line <= place[2] for place in prompt)


def lines(result: dict[str, Any]) -> Iterator[str]:
    """A table for people."""
    asked = result["questions"]
    yield f"{len(asked)} questions, {result['pieces']} pieces and {result['budget']} tokens recalled"
    yield "rounds  pieces  right file  right lines | as many recalled: file  lines"
    for number in range(ROUNDS + 1):
        shares = [
            f"{sum(item[name][number] for item in asked):3}"
            for name in ("file", "lines", "recalled_file", "recalled_lines")
        ]
        pieces = mean(item["pieces"][number] for item in asked)
        yield f"{number:6}  {pieces:6.1f}  {shares[0]:>10}  {shares[1]:>11} | {shares[2]:>22}  {shares[3]:>5}"
    times = [ms for item in asked for ms in item["ms"]]
    if times:
        yield f"{len(times)} calls, {median(times) / 1000:.1f} s each (median)"
