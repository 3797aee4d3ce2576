"""Real git, whose version can be made up, and a program that takes kvd's place and writes down how it was started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvd.hooks import states
from kvd.hooks.repository import Repository, find_repository
from tests.conftest import poll

OLD, NEW = "2.39.5", "2.54.0"
"""A git without hooks in its configuration, and the first one with them."""

Git = Callable[..., subprocess.CompletedProcess[str]]
Say = Callable[[str], None]


@pytest.fixture
def programs(isolated_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first in PATH."""
    folder = isolated_home / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def program(file: Path, text: str) -> Path:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def git_says(programs: Path) -> Say:
    """Have `git version` say something else; in all else it is the git that there is."""
    real = shutil.which("git")

    def say(version: str) -> None:
        program(programs / "git", f'[ "$1" = version ] && echo "git version {version}" && exit\nexec {real} "$@"')

    say(OLD)
    return say


@pytest.fixture
def git(git_says: Say) -> Git:
    """Run git in a folder; what it starts must not hold its output open."""

    def run(folder: Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60.0,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done

    return run


class Recorder:
    """Stands where Python is. Each start adds a line with arguments and folder, and how many GIT_* variables it has."""

    def __init__(self, folder: Path) -> None:
        self._lines = folder / "lines"
        self.file = program(
            folder / 'it\'s a "python"',
            f'echo "$* in $(pwd) with $(env | grep -c ^GIT_)" >>{self._lines}',
        )

    @property
    def lines(self) -> list[str]:
        return self._lines.read_text().splitlines() if self._lines.exists() else []

    def wait(self, count: int = 1) -> list[str]:
        """What was written down, once there are so many lines."""
        poll(lambda: len(self.lines) >= count)
        return self.lines


def told(root: Path) -> str:
    """What the recorder writes when the hook of `root` has called it."""
    return f"-P -m kvd_cli.main hooks run in {root} with 0"


@pytest.fixture
def recorder(isolated_home: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Hooks that are installed now call it."""
    folder = isolated_home / "recorder"
    folder.mkdir()
    found = Recorder(folder)
    monkeypatch.setattr(sys, "executable", str(found.file))
    return found


@pytest.fixture
def hurried(programs: Path) -> None:
    """The second that hooks wait is short."""
    program(programs / "sleep", f"exec {shutil.which('sleep')} 0.05")


@pytest.fixture
def go(isolated_home: Path, programs: Path) -> Path:
    """The second that hooks wait lasts until this file is there; beside it, `waits` has a line for each that waits."""
    file = isolated_home / "go"
    text = f"echo waits >>{isolated_home}/waits\nuntil [ -e {file} ]; do {shutil.which('sleep')} 0.05; done"
    program(programs / "sleep", text)
    return file


@pytest.fixture
def root(isolated_home: Path, git: Git) -> Path:
    """A repository with one commit and no hooks; its name has blanks and quotes."""
    folder = isolated_home / 'it\'s "here" $x'
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main", "--template=")
    change(folder, git, "first")
    return folder


def change(folder: Path, git: Git, name: str) -> None:
    """Commit a new file."""
    (folder / f"{name}.py").write_text(f"def {name}(): pass\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", name)


def install(folder: Path) -> Repository:
    """Install kvd's hooks."""
    found = find_repository(str(folder))
    states.install(found)
    return found


def uninstall(folder: Path) -> None:
    states.uninstall(find_repository(str(folder)))


def hooks_of(folder: Path) -> dict[str, tuple[str, bool, str]]:
    """Owner, whether git runs it, and why not, by event."""
    found = states.status(find_repository(str(folder)))
    return {hook["event"]: (hook["owner"], hook["runs"], hook["why"]) for hook in found["hooks"]}


def hook(file: Path, text: str, mode: int = 0o755) -> Path:
    """Write a hook of somebody else's."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file
