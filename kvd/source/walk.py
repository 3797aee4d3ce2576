"""A plain folder's files in Python, for where git can't list them; `.gitignore` files are followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pathspec


_IGNORE_FILE_LIMIT = 1_000_000

# Ignored although a folder without git may have no .gitignore to say so.
_NEVER_ENTERED = {".git", ".hg", ".svn", ".jj", "node_modules", "__pycache__", ".venv", ".tox", ".mypy_cache"}


@dataclass(frozen=True, slots=True)
class Rules:
    """The patterns of one ignore file; `folder` ("" or "a/b/") is what they are relative to."""

    folder: str
    spec: pathspec.GitIgnoreSpec

    def verdict(self, path: str) -> bool | None:
        """Ignored, expressly not ignored, or nothing said."""
        return self.spec.check_file(path[len(self.folder) :]).include


def walk_folder(root: Path, limit: int) -> Iterator[str]:
    """Paths relative to `root` in order, at most `limit`; folders that are repositories end with `/`.

    Links are named but not entered, so there are no loops. A folder that is ignored is not entered, and ignore
    files in it don't count: nothing in it can be included again. That is git's rule.
    """
    given = 0
    first = read_rules(root / ".git" / "info" / "exclude", "")
    stack: list[tuple[str, tuple[Rules, ...]]] = [("", first)]
    while stack:
        folder, rules = stack.pop()
        rules += read_rules(root / folder / ".gitignore", folder)
        inner: list[str] = []
        for name, is_folder in _entries(root / folder):
            path = folder + name
            if is_folder and (_never_entered(root / path) or ignored(path + "/", rules)):
                continue
            if is_folder and not (root / path / ".git").exists():
                inner.append(path + "/")
            elif is_folder or not ignored(path, rules):
                yield path + "/" if is_folder else path
                given += 1
                if given >= limit:
                    return
        stack += [(path, rules) for path in reversed(inner)]


def walk_folders(root: Path) -> Iterator[str]:
    """The folders that `walk_folder` looks into, as "" or "a/b"; each is given before it is looked into."""
    stack: list[tuple[str, tuple[Rules, ...]]] = [("", read_rules(root / ".git" / "info" / "exclude", ""))]
    while stack:
        folder, rules = stack.pop()
        yield folder.rstrip("/")
        rules += read_rules(root / folder / ".gitignore", folder)
        inner = [folder + name + "/" for name, is_folder in _entries(root / folder) if is_folder]
        stack += [(path, rules) for path in inner if _entered(root / path, path, rules)]


def _entered(folder: Path, path: str, rules: tuple[Rules, ...]) -> bool:
    return not (_never_entered(folder) or ignored(path, rules) or (folder / ".git").exists())


def _never_entered(folder: Path) -> bool:
    # A virtual environment may have any name; this file makes it one.
    return folder.name in _NEVER_ENTERED or (folder / "pyvenv.cfg").is_file()


def _entries(folder: Path) -> list[tuple[str, bool]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except OSError:
        return []


def read_rules(file: Path, folder: str) -> tuple[Rules, ...]:
    """The rules of an ignore file, none where there is no such file."""
    try:
        if file.is_symlink() or not file.is_file():
            return ()
        with file.open("rb") as handle:
            text = handle.read(_IGNORE_FILE_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ()
    # Imported when a folder is first walked: git needs none of it.
    import pathspec

    lines = []
    for line in text.removeprefix("\ufeff").splitlines():
        try:
            pathspec.GitIgnoreSpec.from_lines([line])
        except ValueError:
            continue
        lines.append(line)
    return (Rules(folder, pathspec.GitIgnoreSpec.from_lines(lines)),)


def ignored(path: str, rules: tuple[Rules, ...]) -> bool:
    """What the last rule says that says anything; all of them are of folders that `path` is in."""
    for rule in reversed(rules):
        verdict = rule.verdict(path)
        if verdict is not None:
            return verdict
    return False
