"""Checkouts of the repositories that benchmarks are about."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from kvd.errors import RepositoryError


def checked_out(name: str, url: str, revision: str, folder: Path) -> Path:
    """`folder/name`: what is there, else a clone of `url` at `revision`.

    Raises `RepositoryError` when git can't get it.
    """
    root = folder / name
    if root.is_dir():
        return root
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RepositoryError(f"can't make the folder {folder}: {error.strerror}", hint="give another one") from error
    partial = folder / f".{name}.partial"
    commands: Sequence[Sequence[str]] = (
        ("init", "--quiet", str(partial)),
        ("-C", str(partial), "fetch", "--quiet", "--depth=1", "--", url, revision),
        ("-C", str(partial), "checkout", "--quiet", "FETCH_HEAD"),
    )
    for command in commands:
        done = subprocess.run(("git", *command), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RepositoryError(
                f"can't get {url} at {revision}: {done.stderr.strip()}", hint=f"put a checkout of it at {root}"
            )
    partial.rename(root)
    return root


def revision_of(root: Path) -> str:
    """The commit that a checkout is at; "" where it is no git repository of its own."""
    if not (root / ".git").exists():
        return ""
    command = ("git", "-C", str(root), "rev-parse", "HEAD")
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout.strip()
