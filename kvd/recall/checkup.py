"""`python -m kvd.recall.checkup`: whether SQLite can hold an index here; one JSON object, `{"sqlite", "vec"}`.

A program of its own, because a library that does not fit the machine can end its process.
"""

from __future__ import annotations

import json
import sys

from kvd.errors import KvdError
from kvd.recall import database


def main() -> int:
    """The exit status; a fault that has words for people is `{"error": ...}`."""
    try:
        found: dict[str, object] = {**database.versions()}
    except KvdError as error:
        found = {"error": error.to_json()}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
