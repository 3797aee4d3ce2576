"""`kvd bench rerank`: what the model's judgement adds to recall, and what it takes.

The model in use judges the best chunks of each query of a benchmark such as `kvd.bench.recall` reads, from their KV,
which is made where there is none and kept in the work folder. NDCG@10 of the ranking's order is held against that of
both together, with several weights. What was said of each chunk is in the JSON, so that other rules can be tried on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from kvd.bench.checkouts import checked_out
from kvd.bench.lab import Lab
from kvd.bench.recall import TOP, Query, Repository, ndcg
from kvd.bench.statistics import mean, mean_difference, median
from kvd.bench.text import counted, interval
from kvd.bench.traces import Say
from kvd.config import Settings
from kvd.kv.codec import DEFAULT
from kvd.kv.store import BlockStore
from kvd.models.active import ActiveModel
from kvd.recall.blend import WEIGHT, blended
from kvd.recall.rank import search
from kvd.service.indexer import update_index
from kvd.service.reranking import CANDIDATES
from kvd.types import Hit
from kvd.worker.answerer import Answerer
from kvd.worker.bringing import Listener
from kvd.worker.prompt import Piece
from kvd.worker.rerank import Candidates, Reranker

WEIGHTS = (0.025, 0.05, 0.1, 0.2, 0.4)
"""Tried beside the default."""
NEUTRAL = "What does this code do?"
"""A question about any code: what a chunk gains for it says nothing of the query."""
_EVER = 1e9


@dataclass(frozen=True, slots=True)
class Opinion:
    """What is known of a chunk: the ranking's `score`, and the model's gain in nats a token for the query and for
    `NEUTRAL`. `tokens` are the body's, `targets` the query's targets that it has, from 0."""

    path: str
    lines: tuple[int, int]
    language: str
    scope: str
    tokens: int
    score: float
    gain: float | None
    neutral: float | None
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A query's NDCG by weight ("0": the ranking alone), its candidates, best first, and the time: `ms` to judge them
    from their KV, `computed` of them had none. `wanted` is how many targets it has."""

    repository: str
    category: str
    query: str
    ndcg: dict[str, float]
    wanted: int
    candidates: list[Opinion]
    ms: float
    computed: int


class Run:
    """The model in this process, with a cold store in `folder`."""

    def __init__(self, model: ActiveModel, folder: Path) -> None:
        self._lab = Lab(model, folder / "lab", Settings())
        self._store = BlockStore(folder / "kv.db")
        reuse = self._lab.reuse(DEFAULT, self._store)
        self._answerer = Answerer(self._lab.engine, self._lab.prompts, reuse, 0)
        self._reranker = Reranker(self._answerer, reuse)

    def close(self) -> None:
        self._lab.close()
        self._store.close()

    def judge(self, repository: str, query: Query, root: Path) -> Judgement:
        """One query of the repository whose index is that of `root`."""
        hits = search(root, query.text, max(TOP, CANDIDATES))
        pieces = [self._piece(index, hit) for index, hit in enumerate(hits[:CANDIDATES])]
        candidates = Candidates(query.text, pieces, _EVER)
        neutral = self._reranker.judge(replace(candidates, question=NEUTRAL), self._listener())
        # Timed when all have KV: making it is not what is asked about.
        started = perf_counter()
        gains = self._reranker.judge(candidates, self._listener()).gains
        ms = (perf_counter() - started) * 1000
        found = {f"{weight:g}": _ndcg(query, hits, gains, weight) for weight in (0.0, *WEIGHTS)}
        opinions = [
            _opinion(query, hit, len(piece.body), gain, unasked)
            for hit, piece, gain, unasked in zip(hits, pieces, gains, neutral.gains, strict=False)
        ]
        wanted = len(query.targets)
        return Judgement(
            repository, query.category, query.text, found, wanted, opinions, round(ms, 1), neutral.computed
        )

    def _piece(self, index: int, hit: Hit) -> Piece:
        chunk = hit.chunk
        body = self._lab.prompts.body(chunk.text)
        return Piece(index, chunk.path, chunk.start_line, chunk.end_line, chunk.scope, body)

    def _listener(self) -> Listener:
        return Listener(lambda progress: None, lambda text: None, self._store.put, lambda block: None, lambda: None)


def _opinion(query: Query, hit: Hit, tokens: int, gain: float | None, neutral: float | None) -> Opinion:
    chunk = hit.chunk
    found = tuple(number for number, target in enumerate(query.targets) if target.matches(chunk))
    lines = (chunk.start_line, chunk.end_line)
    return Opinion(chunk.path, lines, chunk.language, chunk.scope, tokens, hit.score, gain, neutral, found)


def _ndcg(query: Query, hits: Sequence[Hit], gains: Sequence[float | None], weight: float) -> float:
    ordered = [*blended(hits[:CANDIDATES], gains, weight), *hits[CANDIDATES:]]
    return ndcg(query.targets, [hit.chunk for hit in ordered])


def measure(
    run: Run, repositories: Sequence[Repository], checkouts: Path, queries: int, command: str, say: Say
) -> dict[str, Any]:
    """Everything as one JSON object, `queries` of each repository, evenly spread over its list; 0: all."""
    judged = []
    for repository in repositories:
        root = checked_out(repository.name, repository.url, repository.revision, checkouts) / repository.folder
        update_index(root, Settings(), lambda progress: None, lambda: False)
        for query in _spread(repository.queries, queries):
            judged.append(run.judge(repository.name, query, root))
            say(f"{repository.name}: {judged[-1].query[:60]}")
    return {"command": command, "weight": WEIGHT, "queries": [asdict(item) for item in judged]}


def _spread(queries: Sequence[Query], count: int) -> list[Query]:
    """They come by category, so that the first ones would be all of one."""
    if not count or count >= len(queries):
        return list(queries)
    return [queries[index * len(queries) // count] for index in range(count)]


def lines(result: dict[str, Any]) -> Iterator[str]:
    """The tables."""
    queries = result["queries"]
    yield result["command"]
    times = median([query["ms"] for query in queries])
    count = counted(len(queries), "query", "queries")
    yield f"{count}; to judge {CANDIDATES} chunks takes {interval(times, '.0f')} ms (median)"
    yield ""
    yield f"{'weight':12}{'NDCG@10 [95 %]':>24}{'against the ranking alone [95 %]':>36}"
    alone = [query["ndcg"]["0"] for query in queries]
    for weight in queries[0]["ndcg"]:
        values = [query["ndcg"][weight] for query in queries]
        against = "" if weight == "0" else interval(mean_difference(values, alone), "+.3f")
        yield f"{weight:12}{interval(mean(values), '.3f'):>24}{against:>36}"
    default = f"{result['weight']:g}"
    yield from ("", f"{'repository':20}{'queries':>9}{'alone':>9}{'with weight ' + default:>20}")
    for name in dict.fromkeys(query["repository"] for query in queries):
        group = [query["ndcg"] for query in queries if query["repository"] == name]
        values = [mean([found[weight] for found in group]).value for weight in ("0", default)]
        yield f"{name:20}{len(group):>9}{values[0]:>9.3f}{values[1]:>20.3f}"
