"""Questions to chunks: BM25 and vectors fused, then what is known of code and files brought in.

A chunk's score is the sum of
- its words: BM25 over body, path and defined names, plus how much of the question it covers;
- its vector's nearness to the question;
- definitions: it defines what the question names;
- its path: file and folder names that the question says;
- its file: other chunks of the same file that answer too;
and that, times a factor for tests, examples, documents and data. Of one file, each further chunk counts less.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import apsw

from kvd import paths
from kvd.errors import UsageError
from kvd.recall import database
from kvd.recall.candidates import Candidate, Gathered, gather
from kvd.recall.places import path_factor
from kvd.recall.words import identifiers, parts_of, query_words, words
from kvd.types import Chunk, Hit

MAX_QUERY = 20_000


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each part counts; the words' best BM25 of a question is 1."""

    coverage: float = 0.4
    vector: float = 0.5
    definition: float = 0.35
    path: float = 0.8
    file: float = 0.45
    repeat: float = 0.55
    floor: float = 0.34
    near: float = 0.4
    near_enough: float = 0.25
    tail: float = 0.15
    places: bool = True


DEFAULT_WEIGHTS = Weights()


def search(root: Path, query: str, top_k: int, weights: Weights = DEFAULT_WEIGHTS) -> list[Hit]:
    """The best chunks, best first; an empty list when nothing is relevant.

    Any text is a query; it has no syntax. Raises `UsageError` for a blank one or one of more than `MAX_QUERY`
    characters, `StoreError` where there is no usable index.
    """
    if not query.strip():
        raise UsageError("the question is empty", hint='kvd search "where is the session closed"')
    if len(query) > MAX_QUERY:
        raise UsageError(f"the question is longer than {MAX_QUERY:,} characters", hint="ask a shorter one")
    if top_k < 1:
        raise UsageError(f"top-k must be at least 1, not {top_k}", hint="give --top-k 1 or more")
    root = Path(root).resolve()
    db = database.open_for_reading(paths.index_file(root), root)
    hits: list[Hit] = []
    try:
        # One transaction: what was found is still there when it is read.
        with database.damage_noticed(root), db:
            hits = _ranked(db, query, top_k, weights)
    finally:
        db.close()
    return hits


def _ranked(db: apsw.Connection, query: str, top_k: int, weights: Weights) -> list[Hit]:
    terms = query_words(query)
    gathered = gather(db, query, terms)
    scorer = _Scorer(query, gathered, weights)
    if not _relevant(gathered, scorer, weights):
        return []
    scored = _worth_showing(scorer.scores(), gathered, weights)
    chosen = _spread(scored, gathered.candidates, top_k, weights)
    texts = _load(db, [number for number, _ in chosen])
    return [Hit(chunk=texts[number], score=round(score, 4)) for number, score in chosen]


def _relevant(gathered: Gathered, scorer: _Scorer, weights: Weights) -> bool:
    """Whether anything answers: enough of the question's words meet in one chunk, or a vector is very near.

    Fewer words are enough where they are the whole name of something that is defined.
    """
    candidates = gathered.candidates.values()
    covered = max((item.coverage for item in candidates), default=0.0)
    nearest = max((item.similarity for item in candidates), default=0.0)
    if covered >= weights.floor or nearest >= weights.near:
        return True
    return covered >= weights.floor * 0.6 and any(scorer.defines(item) for item in candidates)


def _worth_showing(scores: dict[int, float], gathered: Gathered, weights: Weights) -> dict[int, float]:
    """Without what has no word of the question and isn't near it either, and without the far tail."""
    best = max(scores.values(), default=0.0)
    return {
        number: score
        for number, score in scores.items()
        if score >= best * weights.tail
        and (gathered.candidates[number].coverage or gathered.candidates[number].similarity >= weights.near_enough)
    }


class _Scorer:
    """Scores the candidates of one question."""

    def __init__(self, query: str, gathered: Gathered, weights: Weights) -> None:
        self._weights = weights
        self._gathered = gathered
        self._names = identifiers(query)
        self._query_parts = set(gathered.importance)
        self._said = set(words(query))
        self._paths: dict[str, float] = {}

    def scores(self) -> dict[int, float]:
        """Chunk id to score; higher is better, the words' share of the best is 1."""
        candidates = self._gathered.candidates
        best = max((item.bm25 for item in candidates.values()), default=0.0) or 1.0
        own = {number: self._own(item, best) for number, item in candidates.items()}
        files = self._file_scores(own)
        return {
            number: (score + self._weights.file * files[candidates[number].path])
            * (path_factor(candidates[number].path, self._said) if self._weights.places else 1.0)
            for number, score in own.items()
        }

    def _own(self, item: Candidate, best: float) -> float:
        weights = self._weights
        score = item.bm25 / best + weights.coverage * item.coverage + weights.vector * max(0.0, item.similarity)
        if weights.definition:
            score += weights.definition * self.defines(item)
        if weights.path:
            if item.path not in self._paths:
                self._paths[item.path] = self._path(item.path)
            score += weights.path * self._paths[item.path]
        return score

    def defines(self, item: Candidate) -> float:
        """1 for a chunk that defines a name that is written like one in the question, less if its words are said."""
        best = 0.0
        for symbol in item.symbols:
            name = symbol.lower()
            last = name.replace("::", ".").rpartition(".")[2]
            if any(name == asked or last == _last(asked) for asked in self._names):
                return 1.0
            parts = set(parts_of(last))
            if parts and parts <= self._query_parts:
                best = max(best, min(1.0, 1.5 * sum(self._gathered.importance[part] for part in parts)))
        return best * 0.7

    def _path(self, path: str) -> float:
        """The share of the question's words that the file's name or its folders say, the name counting fully."""
        folder, _, name = path.rpartition("/")
        stem = set(words(name.partition(".")[0])) & self._query_parts
        around = (set(words(folder)) & self._query_parts) - stem
        importance = self._gathered.importance
        near = sum(importance[word] for word in stem) + 0.4 * sum(importance[word] for word in around)
        whole = set(parts_of(name.partition(".")[0]))
        complete = 0.25 if whole and whole <= self._query_parts else 0.0
        return min(1.0, near * 1.5 + complete)

    def _file_scores(self, own: dict[int, float]) -> dict[str, float]:
        """For each file how well its best chunks answer together, relative to the best file."""
        by_file: dict[str, list[float]] = defaultdict(list)
        for number, score in own.items():
            by_file[self._gathered.candidates[number].path].append(score)
        sums = {
            path: sum(score / (rank + 1) for rank, score in enumerate(sorted(scores, reverse=True)[:4]))
            for path, scores in by_file.items()
        }
        best = max(sums.values(), default=1.0) or 1.0
        return {path: value / best for path, value in sums.items()}


def _last(name: str) -> str:
    return name.replace("::", ".").replace("#", ".").replace("->", ".").rpartition(".")[2]


def _spread(
    scores: dict[int, float], candidates: dict[int, Candidate], top_k: int, weights: Weights
) -> list[tuple[int, float]]:
    """The best `top_k`, where the n-th chunk of a file counts `repeat ** n`; ties go by path and place."""
    ordered = sorted(scores, key=lambda number: (-scores[number], candidates[number].path, number))
    seen: dict[str, int] = defaultdict(int)
    damped = []
    for number in ordered:
        path = candidates[number].path
        damped.append((number, scores[number] * weights.repeat ** seen[path]))
        seen[path] += 1
    damped.sort(key=lambda pair: (-pair[1], candidates[pair[0]].path, pair[0]))
    return damped[:top_k]


def _load(db: apsw.Connection, numbers: list[int]) -> dict[int, Chunk]:
    found = {}
    for number in numbers:
        row = database.rows(
            db,
            "SELECT path, language, scope, start_line, end_line, start_byte, end_byte, text"
            " FROM chunks JOIN files ON files.id = file_id WHERE chunks.id = ?",
            (number,),
        )[0]
        found[number] = Chunk(*row)
    return found
