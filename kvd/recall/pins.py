"""Chunks that a query points at: the files and lines that it names, and the text that it quotes."""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from kvd.recall import database
from kvd.recall.query import Query
from kvd.recall.stems import terms
from kvd.recall.traces import MAX_PLACES, Place, resemblance

_MOST_FILES = 3
"""Files that a name may mean; more of them tell nothing."""
_MOST_CHUNKS = 60
"""Of a file that is named without a line."""
_MOST_PHRASES = 300

FRAME, FILE, MENTION = 1.0, 0.6, 0.2
"""How much a chunk leads that holds the innermost frame, is of a file named by its path, or by its name alone."""
_FURTHER = 0.03
"""How much less each further frame leads."""


def led(db: apsw.Connection, query: Query) -> dict[int, float]:
    """Chunk id to how much it leads, up to 1, by the places that the query names."""
    leads: dict[int, float] = {}
    resolved = 0
    for place in query.places:
        files = _files(db, place)
        if not files or len(files) > _MOST_FILES:
            continue
        for chunk in _chunks(db, files, place):
            leads.setdefault(chunk, _lead(query, place) - _FURTHER * resolved)
        resolved += 1
        if resolved == MAX_PLACES:
            break
    return leads


def _lead(query: Query, place: Place) -> float:
    if place.line:
        return FRAME
    return FILE if "/" in place.path or query.text.strip() == place.path else MENTION


def _files(db: apsw.Connection, place: Place) -> list[int]:
    """The ids of the files that the place may mean, those alone that resemble it most."""
    name = place.path.rpartition("/")[2]
    pattern = "%/" + name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    found = database.rows(
        db, "SELECT id, path FROM files WHERE skipped = '' AND (path = ? OR path LIKE ? ESCAPE '\\')", (name, pattern)
    )
    rated = {number: resemblance(place.path, path) for number, path in found}
    best = max(rated.values(), default=0)
    return sorted(number for number, rate in rated.items() if rate == best and best)


def _chunks(db: apsw.Connection, files: Iterable[int], place: Place) -> Iterable[int]:
    for file in files:
        if place.line:
            # The last one that begins before the line holds it, or what was there when the trace was written.
            sql = "SELECT id FROM chunks WHERE file_id = ? AND start_line <= ? ORDER BY start_line DESC, id LIMIT 1"
            yield from (int(row[0]) for row in database.rows(db, sql, (file, place.line)))
        else:
            sql = "SELECT id FROM chunks WHERE file_id = ? ORDER BY start_line, id LIMIT ?"
            yield from (int(row[0]) for row in database.rows(db, sql, (file, _MOST_CHUNKS)))


def literal(db: apsw.Connection, query: Query) -> dict[int, float]:
    """Chunk id to how much of what the query quotes it says to the letter: 1 for a quotation, less for a message."""
    shares: dict[int, float] = {}
    for piece in query.quoted:
        for chunk in _saying(db, piece):
            shares[chunk] = 1.0
    for piece in query.message:
        for chunk in _saying(db, piece):
            shares[chunk] = max(shares.get(chunk, 0.0), 0.5 * len(piece) / max(map(len, query.message)))
    return shares


def _saying(db: apsw.Connection, piece: str) -> list[int]:
    """The chunks whose text has the piece in it, written as it is, else in other cases."""
    asked = " ".join(terms(piece)).replace('"', "")
    if not asked:
        return []
    found = database.rows(
        db,
        "SELECT chunks.id, instr(text, ?) FROM chunks WHERE instr(lower(text), lower(?)) AND id IN"
        " (SELECT rowid FROM words WHERE words MATCH ? LIMIT ?)",
        (piece, piece, f'body : "{asked}"', _MOST_PHRASES),
    )
    exact = [int(number) for number, place in found if place]
    return exact or [int(number) for number, _ in found]
