"""The user's own word on files: `.kvdignore` leaves out more than git does, and a list says what is no secret."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from kvd.errors import UsageError
from kvd.source.walk import ignored, read_rules

IGNORED = "kvdignore"
"""Why a file is left out that a `.kvdignore` names."""

_FILE = ".kvdignore"


def own_rules(root: Path, names: Iterable[str]) -> Callable[[str], bool]:
    """A test for paths that a `.kvdignore` leaves out; such files have the syntax and the reach of `.gitignore`.

    `names` are the repository's files: a `.kvdignore` in a folder counts if it is one of them, that of the root always.
    """
    inner = {name for name in names if name.endswith("/" + _FILE)}
    rules = read_rules(root / _FILE, "")
    for name in sorted(inner, key=lambda name: name.count("/")):
        rules += read_rules(root / name, name[: -len(_FILE)])
    if not rules:
        return lambda path: False
    return lambda path: ignored(path, tuple(rule for rule in rules if path.startswith(rule.folder)))


def matcher(patterns: str) -> Callable[[str], bool]:
    """A test for paths that one of the patterns names, which are written as in `.gitignore`, with blanks between.

    Raises `UsageError` for what is no pattern.
    """
    if not patterns.strip():
        return lambda path: False
    import pathspec

    try:
        spec = pathspec.GitIgnoreSpec.from_lines(patterns.split())
    except ValueError as error:
        raise UsageError(f"{patterns!r} is no list of patterns: {error}", hint="write them as in .gitignore") from error
    return spec.match_file
