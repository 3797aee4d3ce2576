"""The chunks that may answer a question, with what each part of the index says of them.

Each word is looked up by itself: its BM25 shares add up to the BM25 of the whole question, and the rows tell how
common the word is and which words meet in a chunk.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import apsw

from kvd.recall import database
from kvd.recall.embed import default_embedder, label
from kvd.recall.index import VECTOR_SCALE, as_int8
from kvd.recall.vocabulary import corrected

MAX_TERMS = 32
"""The rarest words of a longer question are asked for."""

_FEW = 200
_MAX_VECTORS = 50
_MAX_CANDIDATES = 250
_MAX_ROWS = 4_000
"""Postings read for one question."""

BODY, PATH, SYMBOLS = 1.0, 2.0, 3.0
"""BM25 weights of the columns."""


@dataclass(slots=True)
class Candidate:
    """`bm25` is positive, higher is better; `coverage` and `similarity` go up to 1."""

    path: str = ""
    symbols: tuple[str, ...] = ()
    bm25: float = 0.0
    coverage: float = 0.0
    similarity: float = 0.0


@dataclass(frozen=True, slots=True)
class Gathered:
    """`importance` gives each asked word's share of the question; the shares add up to 1."""

    candidates: dict[int, Candidate] = field(default_factory=dict)
    importance: dict[str, float] = field(default_factory=dict)


def gather(db: apsw.Connection, query: str, terms: list[str]) -> Gathered:
    """Look the terms up and find the nearest vectors."""
    # In a few chunks it says little that a word is in most of them.
    total = max(_count(db), _FEW)
    rows = corrected(db, terms)
    asked = sorted(rows, key=lambda term: rows[term] or total)[:MAX_TERMS]
    # Words that are rarer than one chunk in fifty, or missing, weigh alike: one of them can't rule out the rest.
    common = max(1.0, total / 50)
    weights = {term: math.log(1 + (total + 1) / (max(rows[term], common) + 0.5)) for term in asked}
    whole = sum(weights.values()) or 1.0
    importance = {term: weight / whole for term, weight in weights.items()}
    candidates = _lexical(db, asked, rows, importance)
    if terms:
        _add_similar(db, query, terms, candidates)
    _describe(db, candidates)
    return Gathered(candidates, importance)


def _count(db: apsw.Connection) -> int:
    return int(database.rows(db, "SELECT count(*) FROM chunks")[0][0])


def _lexical(
    db: apsw.Connection, asked: list[str], rows: dict[str, int], importance: dict[str, float]
) -> dict[int, Candidate]:
    found: dict[int, Candidate] = {}
    read = 0
    for term in asked:
        # From the rarest on: what is in most chunks tells them apart too little to be worth reading.
        if not rows[term] or (read and read + rows[term] > _MAX_ROWS):
            continue
        read += rows[term]
        # A quoted string has no syntax; words hold no quotes, but doubling them costs nothing.
        quoted = '"' + term.replace('"', '""') + '"'
        for number, rank in database.rows(
            db, "SELECT rowid, bm25(words, ?, ?, ?) FROM words WHERE words MATCH ?", (BODY, PATH, SYMBOLS, quoted)
        ):
            item = found.get(number)
            if item is None:
                item = found[number] = Candidate()
            item.bm25 -= rank
            item.coverage += importance[term]
    best = sorted(found, key=lambda number: found[number].bm25, reverse=True)[:_MAX_CANDIDATES]
    return {number: found[number] for number in best}


def _add_similar(db: apsw.Connection, query: str, terms: list[str], candidates: dict[int, Candidate]) -> None:
    embedder = default_embedder()
    if database.read_meta(db).get("embedder") != label(embedder):
        # Vectors of another embedder can't be compared; the next run of the indexer redoes them.
        return
    vector = as_int8(embedder.embed_query(" ".join(terms))).tobytes()
    twice = 2.0 * VECTOR_SCALE**2
    for number, distance in database.rows(
        db, "SELECT rowid, distance FROM vectors WHERE embedding MATCH vec_int8(?) AND k = ?", (vector, _MAX_VECTORS)
    ):
        candidates.setdefault(number, Candidate()).similarity = 1.0 - distance**2 / twice


def _describe(db: apsw.Connection, candidates: dict[int, Candidate]) -> None:
    """Fill in path and symbols; what has no chunk any more goes."""
    found = database.rows(
        db,
        "SELECT chunks.id, files.path, symbols FROM json_each(?) AS wanted JOIN chunks ON chunks.id = wanted.value"
        " JOIN files ON files.id = file_id",
        (json.dumps(list(candidates)),),
    )
    for number, path, symbols in found:
        candidates[number].path = path
        candidates[number].symbols = tuple(symbols.split("\n")) if symbols else ()
    for number in [number for number, item in candidates.items() if not item.path]:
        del candidates[number]
