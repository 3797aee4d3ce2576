"""Names that code uses and whose definitions stand elsewhere in the repository."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from kvd import paths
from kvd.recall import database, faults
from kvd.recall.query import last_part
from kvd.types import Hit

_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]{2,63}")
_LIKE_A_NAME = re.compile(r"_|[a-z][A-Z]")
_MOST_PLACES = 4
"""A name that more chunks define says little."""

_CHUNKS = "SELECT path, start_line, end_line, symbols FROM chunks JOIN files ON files.id = file_id WHERE symbols <> ''"


def unshown_names(root: Path, hits: Sequence[Hit], most: int) -> list[str]:
    """At most so many names in the code of `hits`, best hits first, what is called before what is not, which has to
    look like a name: `_strip`, `ProgressBar`.

    Raises `StoreError` where there is no usable index.
    """
    root = Path(root).resolve()
    file = paths.index_file(root)
    db = database.open_for_reading(file, root)
    try:
        with faults.damage_noticed(file, root):
            rows = database.rows(db, _CHUNKS)
    finally:
        db.close()
    places: defaultdict[str, set[tuple[str, int, int]]] = defaultdict(set)
    for path, start, end, symbols in rows:
        for symbol in str(symbols).split("\n"):
            places[last_part(symbol)].add((path, start, end))
    shown = {(hit.chunk.path, hit.chunk.start_line, hit.chunk.end_line) for hit in hits}
    return [name for name in _used(hits) if 0 < len(places[name]) <= _MOST_PLACES and not places[name] & shown][:most]


def _used(hits: Sequence[Hit]) -> list[str]:
    called: dict[str, None] = {}
    others: dict[str, None] = {}
    for hit in hits:
        text = hit.chunk.text
        for found in _NAME.finditer(text):
            name = found[0]
            if text[found.end() :].lstrip(" ")[:1] == "(":
                called[name] = None
            elif _LIKE_A_NAME.search(name):
                others[name] = None
    return [*called, *(name for name in others if name not in called)]
