"""The chunks that may answer a question, with what each part of the index says of them.

Each word is looked up by itself: its BM25 shares add up to the BM25 of the whole question, and the rows tell how
common the word is and which words meet in a chunk.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from heapq import nlargest

import apsw

from kvd.errors import KvdError
from kvd.recall import database, pins
from kvd.recall.embed import Embedder, label
from kvd.recall.index import VECTOR_SCALE, as_int8
from kvd.recall.query import Query
from kvd.recall.vocabulary import corrected

_log = logging.getLogger(__name__)

MAX_TERMS = 32
"""The rarest words of a longer question are asked for."""

_FEW = 200
_MAX_VECTORS = 50
_MAX_CANDIDATES = 250
_MAX_ROWS = 2_500
"""Postings read for one question."""

BODY, PATH, SYMBOLS = 1.0, 2.0, 3.0
"""BM25 weights of the columns."""


@dataclass(slots=True)
class Candidate:
    """`bm25` is positive, higher is better; `coverage`, `similarity`, `lead` and `literal` go up to 1."""

    path: str = ""
    scope: str = ""
    symbols: tuple[str, ...] = ()
    mtime_ns: int = 0
    words: set[str] = field(default_factory=set)
    bm25: float = 0.0
    coverage: float = 0.0
    similarity: float = 0.0
    lead: float = 0.0
    literal: float = 0.0


@dataclass(frozen=True, slots=True)
class Gathered:
    """`importance` gives each asked word's share of the question; the shares add up to 1."""

    candidates: dict[int, Candidate] = field(default_factory=dict)
    importance: dict[str, float] = field(default_factory=dict)
    all_embedded: bool = True
    """Whether each chunk of the index has a vector; else what has none is as near as can be, for all that is known."""
    fault: str = ""
    """Why the question got no vector, so that words alone were looked up, or ""."""


def gather(db: apsw.Connection, query: Query, embedder: Embedder, allowed: frozenset[int] | None = None) -> Gathered:
    """Look the terms up, find the nearest vectors and what the query points at; None allows all chunks."""
    chunks = _count(db)
    # In a few chunks it says little that a word is in most of them.
    total = max(chunks, _FEW)
    rows = corrected(db, query.terms)
    asked = sorted(rows, key=lambda term: rows[term] or total)[:MAX_TERMS]
    # Words that are rarer than one chunk in fifty, or missing, weigh alike: one of them can't rule out the rest.
    common = max(1.0, total / 50)
    weights = {term: math.log(1 + (total + 1) / (max(rows[term], common) + 0.5)) for term in asked}
    whole = sum(weights.values()) or 1.0
    importance = {term: weight / whole for term, weight in weights.items()}
    candidates = _Lexical(db, rows, importance, chunks, allowed).found(asked)
    fault = _add_similar(db, query, embedder, candidates, allowed) if query.terms else ""
    _add_pinned(db, query, candidates, allowed)
    _describe(db, candidates)
    waiting = database.rows(db, "SELECT EXISTS (SELECT 1 FROM pending)")[0][0]
    return Gathered(candidates, importance, not waiting, fault)


def _count(db: apsw.Connection) -> int:
    return int(database.rows(db, "SELECT count(*) FROM chunks")[0][0])


@dataclass(frozen=True, slots=True)
class _Lexical:
    """Looks words up. `rows`: in how many chunks each is; `allowed`: the chunks that may be found, None for all."""

    db: apsw.Connection
    rows: dict[str, int]
    importance: dict[str, float]
    chunks: int
    allowed: Container[int] | None

    def found(self, asked: Sequence[str]) -> dict[int, Candidate]:
        """The chunks that say the words best."""
        scores: dict[int, float] = {}
        said: dict[int, list[str]] = {}
        read = 0
        for term in asked:
            rows = self.rows[term]
            # From the rarest on: what is in most chunks tells them apart too little to be worth reading.
            if not rows or (read and read + rows > _MAX_ROWS):
                continue
            read += rows
            self._add(term, scores, said)
        best = nlargest(_MAX_CANDIDATES, scores, key=scores.__getitem__)
        return {
            number: Candidate(
                bm25=scores[number],
                words=set(said[number]),
                coverage=sum(self.importance[term] for term in said[number]),
            )
            for number in best
        }

    def _add(self, term: str, scores: dict[int, float], said: dict[int, list[str]]) -> None:
        lift = _lift(self.rows[term], self.chunks)
        # A quoted string has no syntax; words hold no quotes, but doubling them costs nothing.
        quoted = '"' + term.replace('"', '""') + '"'
        sql = "SELECT rowid, bm25(words, ?, ?, ?) FROM words WHERE words MATCH ?"
        for number, rank in database.rows(self.db, sql, (BODY, PATH, SYMBOLS, quoted)):
            if self.allowed is not None and number not in self.allowed:
                continue
            scores[number] = scores.get(number, 0.0) - rank * lift
            said.setdefault(number, []).append(term)


def _lift(rows: int, chunks: int) -> float:
    """What makes FTS5's IDF, next to nothing for words of half the chunks, one that is above 0 for all words."""
    # A damaged index may have more rows of words than chunks.
    chunks = max(chunks, rows)
    theirs = max(math.log((chunks - rows + 0.5) / (rows + 0.5)), 1e-6)
    return math.log(1 + (chunks - rows + 0.5) / (rows + 0.5)) / theirs


def _add_similar(
    db: apsw.Connection,
    query: Query,
    embedder: Embedder,
    candidates: dict[int, Candidate],
    allowed: frozenset[int] | None,
) -> str:
    """Why there is no vector to compare with, or ""."""
    if database.read_meta(db).get("embedder") != label(embedder):
        # Vectors of another embedder can't be compared; the next run of the indexer redoes them.
        return ""
    try:
        vector = as_int8(embedder.embed_query(query.text)).tobytes()
    except KvdError as error:
        _log.warning("a question without vectors: %s", error.code)
        return error.message
    bindings: tuple[bytes | int | str, ...] = (vector, _MAX_VECTORS)
    confined = ""
    if allowed is not None:
        confined = " AND rowid IN (SELECT value FROM json_each(?))"
        bindings += (json.dumps(sorted(allowed)),)
    twice = 2.0 * VECTOR_SCALE**2
    sql = f"SELECT rowid, distance FROM vectors WHERE embedding MATCH vec_int8(?) AND k = ?{confined}"
    for number, distance in database.rows(db, sql, bindings):
        candidates.setdefault(number, Candidate()).similarity = 1.0 - distance**2 / twice
    return ""


def _add_pinned(
    db: apsw.Connection, query: Query, candidates: dict[int, Candidate], allowed: frozenset[int] | None
) -> None:
    for number, lead in pins.led(db, query).items():
        if allowed is None or number in allowed:
            candidates.setdefault(number, Candidate()).lead = lead
    for number, share in pins.literal(db, query).items():
        if allowed is None or number in allowed:
            candidates.setdefault(number, Candidate()).literal = share


def _describe(db: apsw.Connection, candidates: dict[int, Candidate]) -> None:
    """Fill in what the tables say of each; what has no chunk any more goes."""
    found = database.rows(
        db,
        "SELECT chunks.id, files.path, scope, symbols, mtime_ns FROM json_each(?) AS wanted"
        " JOIN chunks ON chunks.id = wanted.value JOIN files ON files.id = file_id",
        (json.dumps(list(candidates)),),
    )
    for number, path, scope, symbols, mtime_ns in found:
        item = candidates[number]
        item.path, item.scope, item.mtime_ns = path, scope, mtime_ns
        item.symbols = tuple(symbols.split("\n")) if symbols else ()
    for number in [number for number, item in candidates.items() if not item.path]:
        del candidates[number]
