"""A repository in a few words: which folders it has, and what they hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from kvd import paths
from kvd.recall import database, faults

_MOST_FOLDERS = 10
_DEPTH = 2
_LANGUAGES = 2
_LONGEST_NAME = 60


def overview(root: Path) -> str:
    """The folders with the most indexed files and their languages, in one line; "" where nothing is indexed.

    It does not change as long as the folders are the same, so that the KV of it stays. Raises `StoreError` where there
    is no usable index.
    """
    file = paths.index_file(root)
    db = database.open_for_reading(file, root)
    try:
        with faults.damage_noticed(file, root):
            files = database.rows(db, "SELECT path, language FROM files WHERE skipped = ''")
    finally:
        db.close()
    return of_files((str(path), str(language)) for path, language in files)


def of_files(files: Iterable[tuple[str, str]]) -> str:
    """The same of paths and languages."""
    languages: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for path, language in files:
        folder = "/".join(path.split("/")[:-1][:_DEPTH]) or "."
        languages[folder][language] += 1
    largest = sorted(languages, key=lambda folder: (-languages[folder].total(), folder))[:_MOST_FOLDERS]
    return ", ".join(_described(folder, languages[folder]) for folder in sorted(largest))


def _described(folder: str, languages: Counter[str]) -> str:
    known = sorted((name for name in languages if name), key=lambda name: (-languages[name], name))[:_LANGUAGES]
    name = "".join(char if char.isprintable() else "?" for char in folder[:_LONGEST_NAME])
    return f"{name} ({', '.join(sorted(known))})" if known else name
