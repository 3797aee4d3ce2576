"""The indexed chunks that cover lines of a file."""

from __future__ import annotations

from pathlib import Path

from kvd import paths
from kvd.recall import database, faults
from kvd.recall.only import EVERYTHING, Only, allowed_chunks
from kvd.types import Chunk, Hit

_FILES = """SELECT id, path FROM files WHERE skipped = '' AND (path = ?1 OR substr(path, -length(?1) - 1) = '/' || ?1)
ORDER BY path <> ?1 LIMIT 2"""
_CHUNKS = """SELECT chunks.id, path, language, scope, start_line, end_line, start_byte, end_byte, text
FROM chunks JOIN files ON files.id = file_id WHERE file_id = ? AND start_line <= ? AND end_line >= ?
ORDER BY start_line"""


def opened(root: Path, path: str, lines: tuple[int, int], most: int, only: Only = EVERYTHING) -> list[Hit]:
    """At most `most` chunks of the file, in order; none where `path` is no indexed file's, nor the end of one's alone.

    `path` comes from a model: nothing but the index is looked into. Raises `StoreError` where there is no usable one.
    """
    root = Path(root).resolve()
    file = paths.index_file(root)
    db = database.open_for_reading(file, root)
    try:
        with faults.damage_noticed(file, root), db:
            found = database.rows(db, _FILES, (path.removeprefix("./"),))
            if not found or (len(found) > 1 and found[0][1] != path.removeprefix("./")):
                return []
            allowed = allowed_chunks(db, only)
            rows = database.rows(db, _CHUNKS, (found[0][0], lines[1], lines[0]))
    finally:
        db.close()
    return [Hit(Chunk(*rest), 0.0) for number, *rest in rows if allowed is None or number in allowed][:most]
