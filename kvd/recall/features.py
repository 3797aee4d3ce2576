"""Texts to rows of a token table: known words by name, others by their character n-grams.

A row's factor is 1 + log(how often the word occurs), so repeats count little. What is not in the vocabulary shares
its factor between the buckets of its n-grams: rare words, typos and other languages still say something.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import log

from kvd.recall.words import STOPWORDS, parts_of

FEATURES_VERSION = 1
"""Raise it when the same text would give other rows: a table belongs to the features that it was trained with."""

_RUN = re.compile(r"\w+")
_GRAM_SIZES = (3, 4, 5)
_LONGEST = 24
_CACHED = 65_536


class Features:
    """The rows of a table: one a word of `vocabulary`, then `buckets` for the n-grams of all others."""

    def __init__(self, vocabulary: Sequence[str], buckets: int) -> None:
        self._rows = {word: row for row, word in enumerate(vocabulary)}
        self._buckets = buckets
        self._of_run = lru_cache(maxsize=_CACHED)(self._uncached)

    def document(self, text: str) -> dict[int, float]:
        """Rows of a text's words and their factors."""
        return self._weighed(Counter(_RUN.findall(text)).items())

    def query(self, text: str) -> dict[int, float]:
        """The same without the words that every question has, unless there are no others."""
        runs = _RUN.findall(text)
        told = [run for run in runs if run.lower() not in STOPWORDS]
        return self._weighed(Counter(told or runs).items())

    def _weighed(self, runs: Iterable[tuple[str, int]]) -> dict[int, float]:
        counts: dict[tuple[int, ...], int] = {}
        for run, number in runs:
            for rows in self._of_run(run):
                counts[rows] = counts.get(rows, 0) + number
        factors: dict[int, float] = {}
        for rows, number in counts.items():
            share = (1.0 + log(number)) / len(rows)
            for row in rows:
                factors[row] = factors.get(row, 0.0) + share
        return factors

    def _uncached(self, run: str) -> tuple[tuple[int, ...], ...]:
        """The rows of each word of an identifier: of its parts, and of the whole where that is a known word."""
        parts = parts_of(run)
        found = [rows for part in parts if (rows := self.of_word(part))]
        whole = self._rows.get(run.lower().strip("_")) if len(parts) > 1 else None
        return tuple(found) if whole is None else (*found, (whole,))

    def of_word(self, word: str) -> tuple[int, ...]:
        """The word's own row, or those of its n-grams."""
        row = self._rows.get(word)
        return (row,) if row is not None else self.grams(word)

    def grams(self, word: str) -> tuple[int, ...]:
        """The rows of a word's n-grams; none for a number that is not in the vocabulary."""
        if word.isdigit():
            return ()
        marked = f"<{word[:_LONGEST]}>"
        grams = {marked[i : i + size] for size in _GRAM_SIZES for i in range(len(marked) - size + 1)}
        first = len(self._rows)
        return tuple(sorted(first + zlib.crc32(gram.encode("utf-8", "replace")) % self._buckets for gram in grams))
