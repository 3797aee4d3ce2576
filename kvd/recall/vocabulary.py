"""The words of an index: how common they are, and which one a misspelt word may mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher

import apsw

from kvd.recall import database
from kvd.recall.stems import ENDINGS

_SHORTEST = 6
_LONGEST = 24
_LENGTHS = 2
"""How many letters may be missing or too many."""
_LETTERS = 3
"""How many letters may be in one of two words alone."""
_ALIKE = 0.83
"""Two letters exchanged in a word of six still are."""
_SHORTEST_STEM = 4
_MAX_CORRECTED = 6


def document_counts(db: apsw.Connection, terms: Sequence[str]) -> dict[str, int]:
    """In how many chunks each term is."""
    counts = dict.fromkeys(terms, 0)
    for term in terms:
        for (number,) in database.rows(db, "SELECT doc FROM vocabulary WHERE term = ?", (term,)):
            counts[term] = number
    return counts


def corrected(db: apsw.Connection, terms: Sequence[str]) -> dict[str, int]:
    """The terms with `document_counts`; one that no chunk has is replaced by the one most like it, if any is."""
    counts = document_counts(db, terms)
    missing = [term for term in terms if not counts[term] and term.isalpha() and _SHORTEST <= len(term) <= _LONGEST]
    near = {term: word for term in missing[:_MAX_CORRECTED] if (word := _nearest(db, term))}
    return {near.get(term, term): counts[term] for term in terms} | document_counts(db, list(near.values()))


def _nearest(db: apsw.Connection, term: str) -> str:
    """The most like of those that begin with the same two letters, else with the same one, which is seldom wrong.

    A misspelt ending was not taken off, so it is compared with stems that get theirs back.
    """
    derived = _derived(db, term)
    return _best(term, [*derived, *_beginning(db, term, term[:2])]) or _best(term, _beginning(db, term, term[:1]))


def _beginning(db: apsw.Connection, term: str, begin: str) -> Iterator[tuple[str, str, int]]:
    """What is alike at first sight, as `_best` takes it."""
    rows = database.rows(
        db,
        "SELECT term, doc FROM vocabulary WHERE term >= ? AND term < ? AND length(term) BETWEEN ? AND ?",
        (begin, begin[:-1] + chr(ord(begin[-1]) + 1), len(term) - _LENGTHS, len(term) + _LENGTHS),
    )
    letters = set(term)
    return ((word, word, number) for word, number in rows if len(letters.symmetric_difference(word)) <= _LETTERS)


def _derived(db: apsw.Connection, term: str) -> Iterator[tuple[str, str, int]]:
    """Stems that the term begins with, but for their end, with each ending that makes them as long as it is."""
    stems = {
        term[:place] + end
        for place in range(_SHORTEST_STEM - 1, len(term) - 1)
        for end in (*term[place : place + _LETTERS], term[place + 1] + term[place])
    }
    counts = document_counts(db, sorted(stems))
    return (
        (stem + ending, stem, number)
        for stem, number in counts.items()
        for ending in ENDINGS
        if number and abs(len(stem + ending) - len(term)) <= _LENGTHS
    )


def _best(term: str, known: Iterable[tuple[str, str, int]]) -> str:
    """Of words, what each is looked up as, and how common that is: what to look up for the one most like `term`, or "".

    Of two that are as alike it is the more common one.
    """
    best = (math.inf, 0, "")
    matcher = SequenceMatcher(b=term, autojunk=False)
    for word, stem, number in known:
        matcher.set_seq1(word)
        if word.isalpha() and matcher.quick_ratio() >= _ALIKE and matcher.ratio() >= _ALIKE:
            best = min(best, (_edits(word, term), -number, stem))
    return best[2]


def _edits(one: str, other: str) -> int:
    """How many letters are missing, too many, wrong, or exchanged with the next one (optimal string alignment)."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, its in enumerate(other, 1):
            least = min(last[j] + 1, row[-1] + 1, last[j - 1] + (letter != its))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == its:
                least = min(least, before[j - 2] + 1)
            row.append(least)
        before, last = last, row
    return last[-1]
