"""How much each candidate of a question is worth.

A chunk's score is the sum of
- its words: BM25 over body, path and defined names, plus how much of the question it covers;
- its vector's nearness to the question;
- definitions: it defines what the question names, most of all where the question is nothing but that name;
- its path: file and folder names that the question says;
- its file: other chunks of the same file that answer too;
- what the question quotes and it says to the letter;
and that, times a factor for tests, examples, documents, data, and for chunks that define nothing. What a stack trace
or a path points at leads.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from math import exp2, fsum

from kvd.recall import pins
from kvd.recall.candidates import Candidate, Gathered
from kvd.recall.places import path_factor
from kvd.recall.query import Query, last_part
from kvd.recall.stems import name_terms, terms


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each part counts; the words' best BM25 of a question is 1.

    `floor`, `evidence` and `nearness` say what is relevant at all (`kvd/recall/relevance.py`): the share of the
    question that one file has, plus that which names have, must reach `floor`, and with `nearness` times the nearest
    vector's similarity `evidence`. A similarity of `near` is enough by itself.
    """

    coverage: float = 0.4
    vector: float = 0.5
    definition: float = 0.35
    symbol: float = 0.5
    path: float = 0.9
    alike: float = 0.6
    file: float = 0.45
    repeat: float = 0.55
    literal: float = 3.0
    lead: float = 5.0
    unnamed: float = 0.9
    recent: float = 0.02
    floor: float = 0.7
    evidence: float = 2.3
    nearness: float = 5.0
    near: float = 0.4
    near_enough: float = 0.25
    tail: float = 0.15
    places: bool = True


DEFAULT_WEIGHTS = Weights()

_OF_A_FILE = 10
"""Chunks that count for their file, each further one less."""
_SHORTEST_ALIKE = 4
_OF_A_FRAME = 0.01
_HOUR_NS = 3_600_000_000_000
_HALVED_AFTER = 24
"""Hours."""


class Scorer:
    """Scores the candidates of one question."""

    def __init__(self, query: Query, gathered: Gathered, weights: Weights) -> None:
        self._query = query
        self._weights = weights
        self._gathered = gathered
        self._asked = set(gathered.importance)
        self._said = set(terms(query.text))
        self._lasts = {last_part(name) for name in query.names}
        self._paths: dict[str, float] = {}

    def scores(self) -> dict[int, float]:
        """Chunk id to score; higher is better, the words' share of the best is 1."""
        candidates = self._gathered.candidates
        best = max((item.bm25 for item in candidates.values()), default=0.0) or 1.0
        own = {number: self._own(item, best) for number, item in candidates.items()}
        files = self._file_scores(own)
        newest = max((item.mtime_ns for item in candidates.values()), default=0)
        return {
            number: (score + self._weights.file * files[item.path]) * self._factor(item)
            + self._weights.lead * item.lead
            + self._weights.recent * _recency(item.mtime_ns, newest)
            for (number, item), score in zip(candidates.items(), own.values(), strict=True)
        }

    def _factor(self, item: Candidate) -> float:
        if item.lead > pins.FILE and self._weights.lead:
            # The order of frames is that of the trace, whatever else they say.
            return _OF_A_FRAME
        factor = 1.0 if item.symbols else self._weights.unnamed
        return factor * path_factor(item.path, self._said) if self._weights.places else factor

    def _own(self, item: Candidate, best: float) -> float:
        weights = self._weights
        score = item.bm25 / best + weights.coverage * item.coverage + weights.vector * max(0.0, item.similarity)
        score += weights.literal * item.literal
        if weights.definition:
            score += weights.definition * self.defines(item)
        if weights.symbol and self._is_asked(item):
            score += weights.symbol
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
            last = last_part(name)
            if name in self._query.names or last in self._lasts:
                return 1.0
            parts = name_terms(last)
            if parts and all(part in self._asked for part in parts):
                best = max(best, min(1.0, 1.5 * fsum(self._gathered.importance[part] for part in set(parts))))
        return best * 0.7

    def _is_asked(self, item: Candidate) -> bool:
        """Whether it defines the one name that is the whole query, in the same case and in what it is said to be in."""
        if not self._query.symbol:
            return False
        asked = last_part(self._query.symbol)
        around = self._query.symbol.removesuffix(asked).strip(".:#->")
        if not any(last_part(symbol) == asked for symbol in item.symbols):
            return False
        return not around or last_part(around).lower() in f"{item.scope} {item.path} {item.symbols}".lower()

    def _path(self, path: str) -> float:
        """The share of the question's words that the file's name or its folders say, the name counting fully."""
        said, folders, whole = _path_terms(path)
        near = said & self._asked
        around = (folders & self._asked) - near
        importance = self._gathered.importance
        share = fsum(importance[word] for word in near) + 0.4 * fsum(importance[word] for word in around)
        share += self._weights.alike * fsum(self._alike(word, near) for word in said - near)
        complete = 0.25 if whole and whole <= self._asked else 0.0
        return min(1.0, share * 1.5 + complete)

    def _alike(self, word: str, near: frozenset[str]) -> float:
        """The weight of an asked word that begins as the file's one, or the other way round: `token`, `tokenize`."""
        if len(word) < _SHORTEST_ALIKE:
            return 0.0
        asked = (one for one in self._asked - near if len(one) >= _SHORTEST_ALIKE)
        alike = (one for one in asked if one.startswith(word) or word.startswith(one))
        return max((self._gathered.importance[one] for one in alike), default=0.0)

    def _file_scores(self, own: dict[int, float]) -> dict[str, float]:
        """For each file how well its best chunks answer together, relative to the best file."""
        by_file: dict[str, list[float]] = defaultdict(list)
        for number, score in own.items():
            by_file[self._gathered.candidates[number].path].append(score)
        sums = {
            path: sum(score / (rank + 1) ** 0.5 for rank, score in enumerate(sorted(scores, reverse=True)[:_OF_A_FILE]))
            for path, scores in by_file.items()
        }
        best = max(sums.values(), default=1.0) or 1.0
        return {path: value / best for path, value in sums.items()}


@lru_cache(maxsize=16_384)
def _path_terms(path: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The words of a file's name without its endings, those of its folders, and the parts of the name alone."""
    folder, _, name = path.rpartition("/")
    stem = name.partition(".")[0]
    return frozenset(terms(stem)), frozenset(terms(folder)), frozenset(name_terms(stem))


def _recency(mtime_ns: int, newest_ns: int) -> float:
    """1 for files as new as the newest one, half a day older. In whole hours: a checkout's files are all as new."""
    hours = (newest_ns - mtime_ns) // _HOUR_NS
    return exp2(-hours / _HALVED_AFTER)
