"""`kvd bench recall`: does recall find the right place? NDCG@10 on a benchmark of queries about public repositories.

The benchmark is a folder: `repos.json`, a list of `{name, language, url, revision, benchmark_root (optional)}`, and
`annotations/NAME.json`, a list of `{query, category, relevant, secondary}`, whose targets are paths or
`{path, start_line, end_line}`. That of semble (MIT) has this form, and its metric is used: binary NDCG over ranked
chunks, relevant and secondary targets alike; a target's rank is that of the first chunk of its file, or of its lines
where they are given, and a rank counts once; paths match where one ends with the other.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from kvd.bench.checkouts import checked_out, revision_of
from kvd.bench.off_topic import OFF_TOPIC
from kvd.bench.statistics import mean, mean_difference, median
from kvd.bench.text import counted, interval
from kvd.bench.traces import Say
from kvd.config import Settings
from kvd.errors import UsageError
from kvd.recall.embed import Embedder
from kvd.recall.rank import search
from kvd.recall.scores import DEFAULT_WEIGHTS, Weights
from kvd.service.indexer import Means, update_index
from kvd.types import Chunk

TOP = 10
FULL, RAW = "kvd", "BM25 alone"

_NEVER = 2.0
"""A similarity that no vector reaches."""
_LEXICAL = replace(DEFAULT_WEIGHTS, vector=0.0, near=_NEVER, near_enough=_NEVER, evidence=0.0)
VARIANTS: dict[str, Weights] = {
    FULL: DEFAULT_WEIGHTS,
    "without vectors": _LEXICAL,
    "without coverage": replace(DEFAULT_WEIGHTS, coverage=0.0),
    "without definitions": replace(DEFAULT_WEIGHTS, definition=0.0),
    "without paths": replace(DEFAULT_WEIGHTS, path=0.0),
    "without files": replace(DEFAULT_WEIGHTS, file=0.0),
    "without names as the whole query": replace(DEFAULT_WEIGHTS, symbol=0.0),
    "without paths that are alike": replace(DEFAULT_WEIGHTS, alike=0.0),
    "without places and quotations": replace(DEFAULT_WEIGHTS, lead=0.0, literal=0.0),
    "without damping of chunks without names": replace(DEFAULT_WEIGHTS, unnamed=1.0),
    "without recency": replace(DEFAULT_WEIGHTS, recent=0.0),
    "without damping of one file's chunks": replace(DEFAULT_WEIGHTS, repeat=1.0),
    "without damping of tests and the like": replace(DEFAULT_WEIGHTS, places=False),
    RAW: replace(
        _LEXICAL,
        coverage=0.0,
        definition=0.0,
        symbol=0.0,
        path=0.0,
        file=0.0,
        literal=0.0,
        lead=0.0,
        unnamed=1.0,
        repeat=1.0,
        recent=0.0,
        floor=0.0,
        evidence=0.0,
        tail=0.0,
        places=False,
    ),
}
"""Ways to rank: all that kvd does, the same without one part of it, and BM25 over body, path and names alone."""


@dataclass(frozen=True, slots=True)
class Target:
    """A file, or lines of it (from 1, inclusive), that answer a query."""

    path: str
    lines: tuple[int, int] | None = None

    def matches(self, chunk: Chunk) -> bool:
        if not (_is_tail(self.path, chunk.path) or _is_tail(chunk.path, self.path)):
            return False
        return self.lines is None or (chunk.start_line <= self.lines[1] and self.lines[0] <= chunk.end_line)


def _is_tail(end: str, path: str) -> bool:
    return path == end or path.endswith(f"/{end}")


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    category: str
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Repository:
    """One of the benchmark's; `folder`, "" for the root, is the part that is searched."""

    name: str
    url: str
    revision: str
    folder: str
    queries: tuple[Query, ...]


def read_benchmark(folder: Path) -> list[Repository]:
    """Raises `UsageError` for a folder that is not as described above."""
    try:
        entries = json.loads((folder / "repos.json").read_text("utf-8"))
        repositories = [_repository(entry, folder) for entry in entries]
        if not any(repository.queries for repository in repositories):
            raise ValueError("no queries")
        return repositories
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{folder} is no benchmark of retrieval: {type(error).__name__}: {error}",
            hint="it needs repos.json and annotations/NAME.json, see kvd/bench/recall.py",
        ) from error


def _repository(entry: dict[str, Any], folder: Path) -> Repository:
    name = str(entry["name"])
    # It is the name of a folder, too.
    if name != os.path.basename(name) or name in ("", ".", ".."):
        raise ValueError(f"a repository can't be named {name!r}")
    queries = json.loads((folder / "annotations" / f"{name}.json").read_text("utf-8"))
    root = str(entry.get("benchmark_root", ""))
    return Repository(name, str(entry["url"]), str(entry["revision"]), root, tuple(map(_query, queries)))


def _query(entry: dict[str, Any]) -> Query:
    targets = tuple(map(_target, [*entry["relevant"], *entry.get("secondary", ())]))
    if not targets:
        raise ValueError(f"no target for {entry['query']!r}")
    return Query(str(entry["query"]), str(entry["category"]), targets)


def _target(entry: str | dict[str, Any]) -> Target:
    if isinstance(entry, str):
        return Target(entry)
    lines = (int(entry["start_line"]), int(entry["end_line"])) if "start_line" in entry else None
    return Target(str(entry["path"]), lines)


def ndcg(targets: Sequence[Target], chunks: Sequence[Chunk]) -> float:
    """Of the first `TOP` chunks, best first: 1 where every target comes as early as it can."""
    ranks = {next((rank for rank, chunk in enumerate(chunks[:TOP]) if item.matches(chunk)), None) for item in targets}
    # A chunk that has two targets is one good result, not two.
    gained = sum(_gain(rank) for rank in ranks if rank is not None)
    return gained / sum(_gain(rank) for rank in range(min(TOP, len(targets))))


def _gain(rank: int) -> float:
    return 1 / math.log2(rank + 2)


@dataclass(frozen=True, slots=True)
class Scored:
    """A query's NDCG with each variant, and the milliseconds that the full ranking took."""

    repository: str
    category: str
    query: str
    ndcg: dict[str, float]
    ms: float
    refused: bool
    """Whether nothing was found relevant."""


def measure(
    repositories: Sequence[Repository], checkouts: Path, command: str, say: Say, embedder: Embedder | None = None
) -> dict[str, Any]:
    """Everything as one JSON object. Checkouts in `checkouts` are taken as they are; those that are missing are cloned.

    `embedder`: None for the default one. Raises `RepositoryError` where git can't get a repository.
    """
    scored: list[Scored] = []
    abouts, answered = [], []
    for repository in repositories:
        root = checked_out(repository.name, repository.url, repository.revision, checkouts)
        abouts.append({"name": repository.name, "revision": revision_of(root), "wanted": repository.revision})
        say(f"{repository.name}: {counted(len(repository.queries), 'query', 'queries')}")
        searched = root / repository.folder
        update_index(searched, Settings(), lambda progress: None, lambda: False, Means(embedder))
        scored += [_scored(repository.name, query, searched, embedder) for query in repository.queries]
        found = [text for text in OFF_TOPIC if search(searched, text, 1, embedder=embedder)]
        answered += [{"repository": repository.name, "query": text} for text in found]
    return {
        "command": command,
        "repositories": abouts,
        "queries": [asdict(item) for item in scored],
        "off_topic": {"asked": len(OFF_TOPIC) * len(repositories), "answered": answered},
    }


def _scored(repository: str, query: Query, root: Path, embedder: Embedder | None) -> Scored:
    found, ms, refused = {}, 0.0, False
    for name, weights in VARIANTS.items():
        started = perf_counter()
        hits = search(root, query.text, TOP, weights, embedder=embedder)
        if name == FULL:
            ms, refused = round((perf_counter() - started) * 1000, 2), not hits
        found[name] = ndcg(query.targets, [hit.chunk for hit in hits])
    return Scored(repository, query.category, query.text, found, ms, refused)


def lines(result: dict[str, Any]) -> Iterator[str]:
    """The tables."""
    queries = result["queries"]
    yield result["command"]
    times = median([query["ms"] for query in queries])
    abouts = result["repositories"]
    counts = f"{counted(len(queries), 'query', 'queries')}, {counted(len(abouts), 'repository', 'repositories')}"
    yield f"{counts}; a search takes {times.value:.1f} ms (median)"
    off_topic = result["off_topic"]
    yield (
        f"nothing found for {sum(query['refused'] for query in queries)} of them,"
        f" something for {len(off_topic['answered'])} of {off_topic['asked']} questions about something else"
    )
    for about in abouts:
        if not about["revision"].startswith(about["wanted"]):
            found = about["revision"][:12] or "no known revision"
            yield f"{about['name']} is at {found}, not at {about['wanted'][:12]}"
    yield ""
    yield f"{'ranking':40}{'NDCG@10 [95 %]':>24}{'against kvd [95 %]':>30}"
    full = [query["ndcg"][FULL] for query in queries]
    for name in VARIANTS:
        values = [query["ndcg"][name] for query in queries]
        against = "" if name == FULL else interval(mean_difference(values, full), "+.3f")
        yield f"{name:40}{interval(mean(values), '.3f'):>24}{against:>30}"
    for title in ("repository", "category"):
        yield from ("", f"{title:40}{'queries':>9}{FULL:>9}{'without vectors':>17}{RAW:>12}")
        for name, group in _grouped(queries, title):
            values = [mean([query["ndcg"][way] for query in group]).value for way in (FULL, "without vectors", RAW)]
            yield f"{name:40}{len(group):>9}{values[0]:>9.3f}{values[1]:>17.3f}{values[2]:>12.3f}"


def _grouped(queries: Iterable[dict[str, Any]], key: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    groups: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for query in queries:
        groups[query[key]].append(query)
    yield from groups.items()
