"""Questions to chunks: what may answer is gathered, scored, and spread over files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import apsw

from kvd import paths
from kvd.errors import UsageError
from kvd.recall import database, faults
from kvd.recall.candidates import Candidate, Gathered, gather
from kvd.recall.embed import Embedder, default_embedder
from kvd.recall.only import EVERYTHING, Only, allowed_chunks, unmatched
from kvd.recall.query import read_query
from kvd.recall.relevance import relevant
from kvd.recall.scores import DEFAULT_WEIGHTS, Scorer, Weights
from kvd.types import Chunk, Hit

MAX_QUERY = 20_000


def search(
    root: Path,
    query: str,
    top_k: int,
    weights: Weights = DEFAULT_WEIGHTS,
    only: Only = EVERYTHING,
    embedder: Embedder | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[Hit]:
    """The best chunks, best first; an empty list when nothing is relevant. `embedder`: None for the default one.

    `tell` hears why words alone were searched, where the embedder failed, and that `only` leaves nothing. Any text is
    a query; it has no syntax. Raises `UsageError` for a blank one or one of more than `MAX_QUERY` characters,
    `StoreError` where there is no usable index.
    """
    if not query.strip():
        raise UsageError("the question is empty", hint='kvd search "where is the session closed"')
    if len(query) > MAX_QUERY:
        raise UsageError(f"the question is longer than {MAX_QUERY:,} characters", hint="ask a shorter one")
    if top_k < 1:
        raise UsageError(f"top-k must be at least 1, not {top_k}", hint="give --top-k 1 or more")
    root = Path(root).resolve()
    file = paths.index_file(root)
    db = database.open_for_reading(file, root)
    hits: list[Hit] = []
    try:
        # One transaction: what was found is still there when it is read.
        with faults.damage_noticed(file, root), db:
            hits = _ranked(db, query, top_k, weights, only, embedder or default_embedder(), tell)
    finally:
        db.close()
    return hits


def _ranked(
    db: apsw.Connection,
    text: str,
    top_k: int,
    weights: Weights,
    only: Only,
    embedder: Embedder,
    tell: Callable[[str], None] | None,
) -> list[Hit]:
    query = read_query(text)
    allowed = allowed_chunks(db, only)
    if allowed is not None and not allowed:
        if tell is not None:
            tell(unmatched(db, only))
        return []
    gathered = gather(db, query, embedder, allowed)
    if gathered.fault and tell is not None:
        tell(f"words alone were searched: {gathered.fault}")
    if not relevant(gathered, weights):
        return []
    scored = _worth_showing(Scorer(query, gathered, weights).scores(), gathered, weights)
    chosen = _spread(scored, gathered.candidates, top_k, weights)
    texts = _load(db, [number for number, _ in chosen])
    return [Hit(chunk=texts[number], score=round(score, 4)) for number, score in chosen]


def _worth_showing(scores: dict[int, float], gathered: Gathered, weights: Weights) -> dict[int, float]:
    """Without what has no word of the question and isn't near it either, and without the far tail."""
    candidates = gathered.candidates
    best = max((scores[number] - weights.lead * candidates[number].lead for number in scores), default=0.0)
    return {
        number: score
        for number, score in scores.items()
        if score >= best * weights.tail and _says_something(candidates[number], weights)
    }


def _says_something(item: Candidate, weights: Weights) -> bool:
    return bool(item.coverage or item.lead or item.literal) or item.similarity >= weights.near_enough


def _spread(
    scores: dict[int, float], candidates: dict[int, Candidate], top_k: int, weights: Weights
) -> list[tuple[int, float]]:
    """The best `top_k`, where the n-th chunk of a file counts `repeat ** n`; ties go by path and place.

    That a chunk leads counts fully.
    """
    ordered = sorted(scores, key=lambda number: (-scores[number], candidates[number].path, number))
    seen: dict[str, int] = defaultdict(int)
    damped = []
    for number in ordered:
        item = candidates[number]
        ahead = weights.lead * item.lead
        damped.append((number, ahead + (scores[number] - ahead) * weights.repeat ** seen[item.path]))
        seen[item.path] += 1
    damped.sort(key=lambda pair: (-pair[1], candidates[pair[0]].path, pair[0]))
    return damped[:top_k]


def _load(db: apsw.Connection, numbers: list[int]) -> dict[int, Chunk]:
    rows = database.rows(
        db,
        "SELECT chunks.id, files.path, language, scope, start_line, end_line, start_byte, end_byte, text"
        " FROM json_each(?) AS wanted JOIN chunks ON chunks.id = wanted.value JOIN files ON files.id = file_id",
        (json.dumps(numbers),),
    )
    return {number: Chunk(*rest) for number, *rest in rows}
