"""A year of conversations about one repository: how long it takes to list, show, fork and delete them.

They are written to the file as the daemon writes them; what they say is made up of the repository's code.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import numpy as np

from kvd import paths
from kvd.bench.statistics import median
from kvd.config import Settings
from kvd.kv.codec import BLOCK_TOKENS
from kvd.kv.pager import BlockAddress
from kvd.recall.rank import search
from kvd.rpc.client import Client
from kvd.sessions.records import SaidChunk, Session, Turn
from kvd.sessions.store import SessionStore
from kvd.types import Chunk
from kvd.worker.conversation import Conversation, SaidBlock
from kvd.worker.layout import Said

Say = Callable[[str], None]

CountTokens = Callable[[str], int]

_ANSWER_CHARACTERS = 800
_CHUNKS = 2
"""Of a turn."""
_VOCABULARY = 32_000
_LOOKS = 20
_CHANGES = 5


def measure(
    root: Path, questions: Sequence[str], tokens: int, turns: int, count: CountTokens, seed: int, say: Say
) -> dict[str, Any]:
    """Fill the file with sessions of so many `turns` until what was said has `tokens`, then use them by a daemon."""
    store, random = SessionStore(paths.sessions_file()), Random(seed)
    code = _code_of(root, questions)
    said, names, writing = 0, list[str](), list[float]()
    while said < tokens:
        names.append(f"year-{len(names) + 1}")
        for turn, chunks, state in _turns(session := store.create(root, names[-1]), questions, code, turns, random):
            started = perf_counter()
            store.add_turn(session, turn, chunks, state, ("made up", "0" * 64))
            writing.append((perf_counter() - started) * 1000)
            said += count(turn.question) + count(turn.answer)
        if len(names) % 50 == 0:
            say(f"remembered: {said:,} of {tokens:,} tokens in {len(names)} sessions")
    return {
        "tokens": said,
        "sessions": len(names),
        "turns": len(names) * turns,
        "file_bytes": paths.bytes_on_disk(paths.sessions_file()),
        "write_ms": median(writing).value,
        "calls": _timed(root, names, questions, random),
    }


def _code_of(root: Path, questions: Sequence[str]) -> list[Chunk]:
    found = {hit.chunk.text: hit.chunk for text in questions[:100] for hit in search(root, text, Settings().top_k)}
    return list(found.values())


def _turns(
    session: Session, questions: Sequence[str], code: Sequence[Chunk], turns: int, random: Random
) -> Iterator[tuple[Turn, list[SaidChunk], str]]:
    """Turns of one session, each with the chunks that it brings in and the engine's state after it."""
    for number in range(1, turns + 1):
        question, answer = random.choice(questions), random.choice(code).text[:_ANSWER_CHARACTERS]
        chunks = [
            SaidChunk(label, number, c.path, c.start_line, c.end_line, c.scope, c.language, c.text)
            for label, c in enumerate(random.sample(code, min(_CHUNKS, len(code))), (number - 1) * _CHUNKS + 1)
        ]
        source = {"path": chunks[0].path, "start_line": 1, "end_line": 9, "symbol": "", "cited": False}
        turn = Turn(number, question, answer, "stop", time.time(), "", [source] * _CHUNKS, {"fresh": 9}, {"ttft": 9.0})
        yield turn, chunks, _state(session, number, random)


def _state(session: Session, turns: int, random: Random) -> str:
    """As large as the engine's for a conversation of 256 tokens a turn."""
    tokens = tuple(random.choices(range(_VOCABULARY), k=2 * BLOCK_TOKENS))
    items = tuple(
        Said(tokens, 0, number, labels=tuple(range((number - 1) * _CHUNKS + 1, number * _CHUNKS + 1)))
        for number in range(1, turns + 1)
    )
    blocks = tuple(
        SaidBlock(at, BlockAddress(random.randbytes(32), random.randbytes(32), tokens[:BLOCK_TOKENS]))
        for at in range(0, turns * len(tokens), BLOCK_TOKENS)
    )
    said = Conversation(session.family, items, blocks, labels=turns * _CHUNKS, turns=turns)
    return json.dumps(said.to_state("made up", ""))


def _timed(root: Path, names: Sequence[str], questions: Sequence[str], random: Random) -> dict[str, dict[str, float]]:
    """Milliseconds of each call as a client sees them, the first one apart."""
    repo, forks = str(root), [f"fork-{number}" for number in range(_CHANGES)]
    calls: dict[str, list[dict[str, Any]]] = {
        "session/list": [{}] * _LOOKS,
        "session/show": [{"name": name} for name in random.choices(names, k=_LOOKS)],
        # The first one makes all turns findable.
        "session/search": [{"query": query} for query in random.choices(questions, k=_LOOKS)],
        "session/fork": [{"name": random.choice(names), "new_name": fork} for fork in forks],
        "session/delete": [{"name": name} for name in random.sample(names, min(_CHANGES, len(names)))],
    }
    times = dict[str, list[float]]()
    with Client.connect() as client:
        for method, params in calls.items():
            for more in params:
                started = perf_counter()
                client.call(method, {"repo": repo, **more})
                times.setdefault(method, []).append((perf_counter() - started) * 1000)
    return {method: _figures(taken[0], taken[1:] or taken) for method, taken in times.items()}


def _figures(first: float, others: Sequence[float]) -> dict[str, float]:
    return {"first_ms": first, "median_ms": median(others).value, "p95_ms": float(np.quantile(others, 0.95))}


def lines(result: dict[str, Any]) -> Iterator[str]:
    """What there is, and a table."""
    yield (
        f"{result['tokens']:,} tokens said in {result['turns']:,} turns of {result['sessions']:,} sessions, "
        f"{result['file_bytes'] / 1e6:.0f} MB; a turn is written in {result['write_ms']:.1f} ms (median)"
    )
    yield "| | first | median of the others | 95 % within |"
    yield "|---|---|---|---|"
    for method, row in result["calls"].items():
        yield f"| {method} | {row['first_ms']:.1f} ms | {row['median_ms']:.1f} ms | {row['p95_ms']:.1f} ms |"
