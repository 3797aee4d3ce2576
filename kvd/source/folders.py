"""Which folders of a repository can hold files that count, and what git ignores.

For who watches them: an ignored folder is never looked into, however large it is.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterator, Set
from pathlib import Path

from kvd.git import git_environment
from kvd.paths import git_root
from kvd.source.walk import walk_folders
from kvd.source.watch import NoEventsError

_GIT_TIMEOUT_S = 30

_GIT_FILES = ("index", "info/exclude", "info/attributes", "config")
"""Files of git's own that decide which files of the work tree count; `git rm --cached` changes the first one alone."""


def ignored(root: Path, paths: Collection[str]) -> set[str] | None:
    """Those of `paths` that git ignores, or None where git can't say.

    Paths are relative to `root`; a folder's ends with `/`, whether it still exists or not. What git tracks, and a
    folder that holds some of it, is not ignored.
    """
    if git_root(root) is None:
        return None
    by_name = {_as_git_asks(root, path): path for path in paths}
    output = _git(root, ["check-ignore", "-z", "--stdin"], b"".join(name + b"\0" for name in by_name))
    return None if output is None else {by_name[name] for name in output.split(b"\0") if name}


def _as_git_asks(root: Path, path: str) -> bytes:
    # With "./" before them, names that begin with ":" have no other meaning. Only what is gone needs the "/" to be
    # taken for a folder; where one is, "folder/" would be judged by the ignore file in it.
    there = path.endswith("/") and os.path.lexists(root / path[:-1])
    return b"./" + os.fsencode(path[:-1] if there else path)


def visible_folders(root: Path, kept_out: Set[str]) -> Iterator[str]:
    """The folders in which a new file would count, relative to `root`, itself ("") first.

    Each is given before it is looked into: what appears in it after that is either among what follows, or noticed by
    who watches it from then on. Links, other repositories, git's own files and the absolute paths in `kept_out` are
    left out. Raises `NoEventsError` if git can't say any more what it ignores.
    """
    if ignored(root, []) is None:
        yield from (folder for folder in walk_folders(root) if f"{root}/{folder}" not in kept_out)
        return
    level = [""]
    while level:
        yield from level
        inner = [f"{path}/" for folder in level for path in _inner(root, folder, kept_out)]
        hidden = ignored(root, inner)
        if hidden is None:
            raise NoEventsError("git can't say what it ignores")
        level = [path[:-1] for path in inner if path not in hidden]


def _inner(root: Path, folder: str, kept_out: Set[str]) -> Iterator[str]:
    try:
        with os.scandir(root / folder) as entries:
            found = [(entry.name, entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for name, path in found:
        if name != ".git" and path not in kept_out and not os.path.lexists(f"{path}/.git"):
            yield f"{folder}/{name}" if folder else name


def git_files(root: Path) -> dict[str, set[str]]:
    """Git's own files that decide what counts, whether they exist or not: names by their folder (absolute)."""
    arguments = [part for name in _GIT_FILES for part in ("--git-path", name)]
    output = _git(root, ["rev-parse", *arguments]) if git_root(root) else None
    found: dict[str, set[str]] = {}
    for line in (output or b"").splitlines():
        # A worktree's are elsewhere, and absolute.
        folder, name = os.path.split(os.path.join(root, os.fsdecode(line)))
        found.setdefault(folder, set()).add(name)
    return found


def _git(root: Path, arguments: list[str], given: bytes = b"") -> bytes | None:
    """Its output, or None when it fails; 1 is what check-ignore says of nothing ignored."""
    # core.fsmonitor would run a program that the repository's own configuration names.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, input=given, capture_output=True, env=git_environment(), timeout=_GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode in (0, 1) else None
