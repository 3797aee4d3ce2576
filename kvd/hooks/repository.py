"""What git says of a repository: where its hooks lie, and which kinds of hooks this git has."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kvd.errors import KvdError, RepositoryError
from kvd.git import git_environment

_CONFIGURED_SINCE = (2, 54)
"""The first git that runs hooks of its configuration (`git help hook`)."""

_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Repository:
    """`root` is where its hooks are run: the top of the work tree, or a bare repository itself. All paths are absolute.

    `hooks_path`: core.hooksPath, or None; `scope`: which configuration has it (`local`, `global`, ...), or "".
    """

    root: Path
    common: Path
    """The git folder that all its work trees share."""
    version: str
    hooks_path: str | None
    scope: str

    @property
    def configured(self) -> bool:
        """Whether this git runs hooks of its configuration."""
        found = re.match(r"(\d+)\.(\d+)", self.version)
        return found is not None and (int(found[1]), int(found[2])) >= _CONFIGURED_SINCE

    @property
    def default_folder(self) -> Path:
        return self.common / "hooks"

    @property
    def folder(self) -> Path:
        """Where git looks for hook files."""
        return self.default_folder if self.hooks_path is None else self.root / self.hooks_path

    @property
    def husky(self) -> bool:
        """Whether husky keeps that folder: what it finds in the one above it is run from there."""
        folder = self.folder
        return folder.name == "_" and (folder.parent.name == ".husky" or (folder / "h").is_file())

    @property
    def own_folder(self) -> Path:
        """Where a hook file of one's own belongs."""
        return self.folder.parent if self.husky else self.folder

    def git(self, *arguments: str, ok: tuple[int, ...] = (0,)) -> str:
        """stdout of git in this repository; raises `KvdError` unless its exit status is one of `ok`."""
        done = _run(["-C", str(self.root), *arguments])
        if done.returncode not in ok:
            line = _last_line(done)
            raise KvdError(f"git {arguments[0]} failed: {line}", hint=f"ls -l {shlex.quote(str(self.common))}")
        return os.fsdecode(done.stdout)


def find_repository(path: str) -> Repository:
    """The git repository that the absolute `path` is in. Raises `RepositoryError` where there is none to work with."""
    if not os.path.isdir(path):
        raise RepositoryError(f"there is no folder {path}", hint="give the folder of a repository")
    bare = _ask(path, "--is-bare-repository") == "true"
    # Within a git folder there is no top.
    root = _ask(path, "--absolute-git-dir" if bare else "--show-toplevel")
    common = _ask(path, "--path-format=absolute", "--git-common-dir")
    version = os.fsdecode(_run(["version"]).stdout).removeprefix("git version ").strip()
    scope, _, hooks_path = os.fsdecode(
        _run(["-C", root, "config", "-z", "--show-scope", "--type=path", "--get", "core.hooksPath"]).stdout
    ).partition("\0")
    return Repository(Path(root), Path(common), version, hooks_path.rstrip("\0") if scope else None, scope)


def _ask(path: str, *arguments: str) -> str:
    done = _run(["-C", path, "rev-parse", *arguments])
    if done.returncode != 0:
        line = _last_line(done)
        if "not a git repository" in line:
            raise RepositoryError(f"{path} is in no git repository", hint="git init")
        raise RepositoryError(f"git can't work in {path}: {line}", hint="cd to the top of the repository")
    return os.fsdecode(done.stdout).removesuffix("\n")


def _last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = os.fsdecode(done.stderr).strip().splitlines() or [f"exit status {done.returncode}"]
    fatal = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines
    return fatal[0].partition(": ")[2] if ": " in fatal[0] else fatal[0]


def _run(arguments: list[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["git", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=git_environment(),
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise KvdError("there is no git", hint="install git, then try again") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KvdError(f"can't run git: {error}", hint="git version") from error
