"""The turns of all sessions of a repository, found by words and by vectors.

What words and vectors are made of, and how, is the caller's: a turn waits from when it is added until it is `put`.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import exp2, fsum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from kvd.sessions.database import opened
from kvd.sessions.records import Memory
from kvd.sessions.when import Span
from kvd.sqlite import transaction

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAID = 0.5
"""What it counts that a turn says all words of a question; that its vector is the question's counts 1."""
RECENT = 0.02
"""What it counts that a turn is of now: enough to decide between equals."""
_HALVED_AFTER = 30 * 86_400.0
"""Seconds."""

_LENGTH = 127.0
"""What a vector's length of 1 is stored as."""
_CANDIDATES = 20
"""Turns that are looked at for their words, and as many for their vectors; more where more are wanted."""
_MAX_TERMS = 32
_FEW = 200
_MOST_ROOTS = 4
"""Repositories whose vectors are kept in memory."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A turn without words and vector."""

    session_id: int
    number: int
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for: distinct words as they are indexed, a vector (int8), and when it was said, if that matters.

    With a time and without words it is what was said last in that time.
    """

    terms: Sequence[str]
    vector: bytes
    span: Span | None
    now: float


@dataclass(frozen=True, slots=True)
class _Vectors:
    """Those of a repository, in the order of their ids. `stamp` changes when they do."""

    stamp: tuple[int, int]
    ids: NDArray[np.int64]
    asked_at: NDArray[np.float64]
    matrix: NDArray[np.float32]


class MemoryIndex:
    """Opens the file at `path` for each call, from any thread; raises what `database.opened` raises."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._vectors: dict[Path, _Vectors] = {}

    def waiting(self, maker: str, most: int) -> list[Waiting]:
        """Turns that have to be `put`; `maker` names what makes words and vectors. Where that was another one, all."""
        with opened(self.path) as db:
            if _rows(db, "SELECT name FROM memory_maker") != [(maker,)]:
                with transaction(db):
                    db.execute("DELETE FROM memories")
                    db.execute("INSERT OR IGNORE INTO unindexed SELECT session_id, number FROM turns")
                    db.execute("UPDATE memory_maker SET name = ?", (maker,))
            sql = "SELECT session_id, number, question, answer FROM unindexed JOIN turns USING (session_id, number)"
            return [Waiting(*row) for row in _rows(db, f"{sql} LIMIT ?", (most,))]

    def put(self, maker: str, made: Sequence[tuple[Waiting, str, bytes]]) -> None:
        """Words (with blanks between) and vectors of turns; those that are gone meanwhile are left out."""
        with opened(self.path) as db, transaction(db):
            if _rows(db, "SELECT name FROM memory_maker") != [(maker,)]:
                return
            for turn, words, vector in made:
                db.execute(
                    "INSERT INTO memories (session_id, number, root, asked_at, vector)"
                    " SELECT session_id, number, root, asked_at, ? FROM unindexed"
                    " JOIN turns USING (session_id, number) JOIN sessions ON sessions.id = session_id"
                    " WHERE session_id = ? AND number = ?",
                    (vector, turn.session_id, turn.number),
                )
                if db.changes():
                    db.execute("INSERT INTO memory_words (rowid, words) VALUES (last_insert_rowid(), ?)", (words,))
                    where = (turn.session_id, turn.number)
                    db.execute("DELETE FROM unindexed WHERE session_id = ? AND number = ?", where)

    def find(
        self, root: Path, wanted: Wanted, most: int, floor: float, without: Collection[tuple[float, str]] = ()
    ) -> list[Memory]:
        """The turns of the repository at `root` that bear on what is wanted, best first; what reaches `floor` does.

        Of forks' copies of a turn the first is found. `without` are turns to leave out, by time and question.
        """
        best: list[Memory] = []
        with opened(self.path) as db, db:
            if wanted.terms:
                scores = _scores(db, self._known(db, root), wanted, max(_CANDIDATES, most + len(without)))
            else:
                scores = _latest(db, root, wanted.span, most + len(without)) if wanted.span else {}
            found: dict[tuple[float, str], Memory] = {}
            for memory in _load(db, {number: score for number, score in scores.items() if score >= floor}):
                if (memory.asked_at, memory.question) not in without:
                    found.setdefault((memory.asked_at, memory.question), memory)
            best = sorted(found.values(), key=lambda memory: (-memory.score, -memory.asked_at))[:most]
            for place, memory in enumerate(best):
                best[place] = replace(memory, cited=_cited(db, memory.session_id, memory.number))
        return best

    def _known(self, db: apsw.Connection, root: Path) -> _Vectors:
        """The vectors of a repository, read again where some have come or gone. Ids are never used twice."""
        count, last = _rows(db, "SELECT count(*), max(id) FROM memories WHERE root = ?", (os.fsencode(root),))[0]
        with self._lock:
            known = self._vectors.get(root)
        if known is None or known.stamp != (count, last):
            known = _read_vectors(db, root, (count, last))
            with self._lock:
                if len(self._vectors) >= _MOST_ROOTS:
                    self._vectors.clear()
                self._vectors[root] = known
        return known


def _read_vectors(db: apsw.Connection, root: Path, stamp: tuple[int, int]) -> _Vectors:
    import numpy as np

    rows = _rows(db, "SELECT id, asked_at, vector FROM memories WHERE root = ? ORDER BY id", (os.fsencode(root),))
    numbers = np.frombuffer(b"".join(row[2] for row in rows), np.int8)
    ids, asked_at = np.array([row[0] for row in rows], np.int64), np.array([row[1] for row in rows], np.float64)
    return _Vectors(stamp, ids, asked_at, numbers.reshape(len(rows), -1 if rows else 0).astype(np.float32))


def _scores(db: apsw.Connection, known: _Vectors, wanted: Wanted, most: int) -> dict[int, float]:
    """What the turns are worth that say the words best or are nearest, `most` of each."""
    import numpy as np

    if not known.ids.size:
        return {}
    asked = np.frombuffer(wanted.vector, np.int8).astype(np.float32)
    # Not by the matrix product: it has threads, and on a busy machine waits for them ten times as long as this takes.
    similarity = np.einsum("ij,j->i", known.matrix, asked) / np.float32(_LENGTH**2)
    near = similarity.copy()
    if wanted.span is not None:
        near[(known.asked_at < wanted.span.since) | (known.asked_at >= wanted.span.until)] = -np.inf
    rows = np.argpartition(-near, min(most, near.size) - 1)[:most]
    importance, telling = _importance(db, wanted.terms)
    said = _saying(db, telling, known, near)[:most]
    rows = np.union1d(rows[np.isfinite(near[rows])], said)
    words = dict(
        _rows(
            db,
            "SELECT rowid, words FROM memory_words WHERE rowid IN (SELECT value FROM json_each(?))",
            (json.dumps(known.ids[rows].tolist()),),
        )
    )
    scores = {}
    for row in rows.tolist():
        number = int(known.ids[row])
        share = fsum(importance[term] for term in importance.keys() & words[number].split())
        age = max(0.0, wanted.now - float(known.asked_at[row]))
        recent = RECENT * exp2(-age / _HALVED_AFTER)
        scores[number] = max(0.0, float(similarity[row])) + SAID * share + recent
    return scores


def _saying(db: apsw.Connection, terms: Sequence[str], known: _Vectors, near: NDArray[np.float32]) -> NDArray[np.intp]:
    """Rows of the turns that say these words, those that say them best first."""
    import numpy as np

    # Quoted: no syntax; words hold no quotes, but doubling them costs nothing.
    match = " OR ".join('"' + term.replace('"', '""') + '"' for term in terms)
    found = _rows(db, "SELECT rowid FROM memory_words WHERE memory_words MATCH ? ORDER BY rank", (match,))
    ids = np.array([row[0] for row in found], np.int64)
    rows = np.minimum(np.searchsorted(known.ids, ids), known.ids.size - 1)
    # Others are of other repositories, or of another time.
    ours: NDArray[np.intp] = rows[(known.ids[rows] == ids) & np.isfinite(near[rows])]
    return ours


def _importance(db: apsw.Connection, terms: Sequence[str]) -> tuple[dict[str, float], list[str]]:
    """The words' shares of the question, and those to look up: what many turns say tells them apart too little to be
    worth reading, unless there is nothing else."""
    total = _rows(db, "SELECT count(*) FROM memories")[0][0]
    rows = {}
    for term in terms:
        found = _rows(db, "SELECT doc FROM memory_vocabulary WHERE term = ?", (term,))
        rows[term] = found[0][0] if found else 0
    total = max(total, _FEW)
    asked = sorted(rows, key=lambda term: rows[term] or total)[:_MAX_TERMS]
    # Words that are rarer than one turn in fifty, or missing, weigh alike: one of them can't rule out the rest.
    weights = {term: math.log(1 + (total + 1) / (max(rows[term], total / 50) + 0.5)) for term in asked}
    whole = fsum(weights.values())
    telling = [term for term in asked if rows[term] <= total / 20]
    return {term: weight / whole for term, weight in weights.items()}, telling or asked[:1]


def _latest(db: apsw.Connection, root: Path, span: Span, most: int) -> dict[int, float]:
    """The last turns of a time, all worth the same."""
    sql = "SELECT id FROM memories WHERE root = ? AND asked_at >= ? AND asked_at < ? ORDER BY asked_at DESC LIMIT ?"
    return dict.fromkeys((row[0] for row in _rows(db, sql, (os.fsencode(root), span.since, span.until, most))), 1.0)


def _load(db: apsw.Connection, scores: dict[int, float]) -> list[Memory]:
    """The turns without what they cite, the oldest session first."""
    rows = _rows(
        db,
        "SELECT memories.id, session_id, name, number, turns.asked_at, commit_id, question, answer"
        " FROM json_each(?) AS wanted JOIN memories ON memories.id = wanted.value JOIN turns USING (session_id, number)"
        " JOIN sessions ON sessions.id = session_id ORDER BY session_id",
        (json.dumps(list(scores)),),
    )
    return [
        Memory(session, name, number, asked_at, commit, question, answer, scores[row])
        for row, session, name, number, asked_at, commit, question, answer in rows
    ]


def _cited(db: apsw.Connection, session: int, number: int) -> tuple[tuple[str, str], ...]:
    sql = (
        "SELECT path, text FROM cited JOIN chunks USING (session_id, label) JOIN texts USING (hash)"
        " WHERE session_id = ? AND number = ?"
    )
    return tuple(_rows(db, sql, (session, number)))


def _rows(db: apsw.Connection, sql: str, bindings: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query; which types they have the schema says."""
    return list(db.execute(sql, bindings))
