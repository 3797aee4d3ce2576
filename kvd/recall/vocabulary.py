"""The words of an index: how common they are, and which one a misspelt word may mean."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import apsw

from kvd.recall import database

_SHORTEST = 6
_LONGEST = 24
_LENGTHS = 2
"""How many letters may be missing or too many."""
_ALIKE = 0.83
"""Two letters exchanged in a word of six still are."""
_MAX_CORRECTED = 6
_MAX_COMPARED = 1_500


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
    # The first letter is seldom the wrong one, and makes it a range of the index.
    known = database.rows(
        db,
        "SELECT term FROM vocabulary WHERE term >= ? AND term < ? AND length(term) BETWEEN ? AND ? LIMIT ?",
        (term[0], chr(ord(term[0]) + 1), len(term) - _LENGTHS, len(term) + _LENGTHS, _MAX_COMPARED),
    )
    found = get_close_matches(term, [str(word) for (word,) in known], n=1, cutoff=_ALIKE)
    return found[0] if found else ""
