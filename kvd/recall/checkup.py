"""`python -m kvd.recall.checkup`: whether SQLite can hold an index here; one JSON object, `{"sqlite", "vec"}`.

A program of its own, because a library that does not fit the machine can end its process.
"""

from __future__ import annotations

import json
import sys

import apsw

from kvd.errors import KvdError, StoreError
from kvd.recall import database


def versions() -> dict[str, str]:
    """`{"sqlite", "vec"}` of the libraries in use, tried on an index in memory. Raises `StoreError` if they fail."""
    try:
        db = database.connect(":memory:", apsw.SQLITE_OPEN_READWRITE)
        db.execute(database.SCHEMA)
        database.create_vectors(db, 1)
        db.execute("INSERT INTO words (rowid, body, path, symbols) VALUES (1, 'word', '', '')")
        db.execute("INSERT INTO vectors (rowid, embedding) VALUES (1, vec_int8(?))", (b"\1",))
        found = database.rows(
            db,
            "SELECT vectors.rowid FROM vectors JOIN words ON words.rowid = vectors.rowid WHERE words MATCH ?"
            " AND embedding MATCH vec_int8(?) AND k = 1",
            ("word", b"\1"),
        )
        if found != [(1,)]:
            raise StoreError(f"a search finds {found} and not what was stored", hint=database.REINSTALL)
        return {"sqlite": apsw.sqlite_lib_version(), "vec": str(database.rows(db, "SELECT vec_version()")[0][0])}
    except apsw.Error as error:
        raise StoreError(f"SQLite with sqlite-vec does not work: {error}", hint=database.REINSTALL) from error


def main() -> int:
    """The exit status; a fault that has words for people is `{"error": ...}`."""
    try:
        found: dict[str, object] = {**versions()}
    except KvdError as error:
        found = {"error": error.to_json()}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
