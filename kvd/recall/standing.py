"""Whether code that was seen once still stands where it stood."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import apsw

from kvd import paths
from kvd.recall import database, faults


def standing(root: Path, pieces: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Of `pieces`, each a file's path and a chunk's text as it was, those that the file still has.

    Apart from blank lines, and however the file is cut now. Raises `StoreError` where there is no usable index.
    """
    if not pieces:
        return set()
    file = paths.index_file(root)
    db = database.open_for_reading(file, root)
    try:
        with faults.damage_noticed(file, root):
            now = {path: _lines("\n".join(_chunks(db, path))) for path in {path for path, _ in pieces}}
    finally:
        db.close()
    return {(path, text) for path, text in pieces if _lines(text).lstrip() in now[path]}


def _chunks(db: apsw.Connection, path: str) -> list[str]:
    """Of a file, in its order."""
    sql = "SELECT text FROM chunks JOIN files ON files.id = file_id WHERE path = ? ORDER BY start_byte"
    return [str(text) for (text,) in database.rows(db, sql, (path,))]


def _lines(text: str) -> str:
    """Each line with its end, so that none is the beginning of another."""
    return "".join(f"{line.rstrip()}\n" for line in text.split("\n") if line.strip())
