"""Hooks of git's configuration. Where git is too old to run them, they are run here as git's documentation has it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kvd.errors import KvdError
from kvd.hooks.repository import find_repository
from kvd.hooks.script import EVENTS

from .conftest import NEW, OLD, Git, Recorder, Say, change, hook, hooks_of, install, told, uninstall

pytestmark = pytest.mark.usefixtures("hurried")

ALL_RUN = dict.fromkeys(EVENTS, ("kvd", True, ""))


def config(root: Path, git: Git) -> list[str]:
    """All that the repository's configuration has of hooks."""
    listed = git(root, "config", "--local", "--list").stdout.splitlines()
    return [line for line in listed if line.startswith("hook.")]


def test_they_are_written_once_and_removed(root: Path, git: Git, git_says: Say, recorder: Recorder) -> None:
    git_says(NEW)
    theirs = hook(root / ".git" / "hooks" / "post-commit", "#!/bin/sh\n")
    before = (root / ".git" / "config").read_bytes()
    install(root)
    assert hooks_of(root) == ALL_RUN
    assert git(root, "config", "--get-all", "hook.kvd.event").stdout.split() == list(EVENTS)
    assert git(root, "config", "--get-all", "hook.kvd.command").stdout.count("kvd_python=") == 1
    written = (root / ".git" / "config").read_bytes()
    install(root)
    assert (root / ".git" / "config").read_bytes() == written
    assert [path.name for path in theirs.parent.iterdir()] == ["post-commit"]
    uninstall(root)
    assert (root / ".git" / "config").read_bytes() == before
    assert hooks_of(root)["post-commit"] == ("other", True, "")


def as_git_runs_it(command: str, *arguments: str, cwd: Path) -> int:
    """`prepare_shell_cmd` of git's run-command.c."""
    line = [command + ' "$@"' if arguments else command, command, *arguments]
    return subprocess.run(["sh", "-c", *line], cwd=cwd, timeout=30.0, check=False).returncode


def test_the_command_tells_kvd(root: Path, git: Git, git_says: Say, recorder: Recorder) -> None:
    git_says(NEW)
    install(root)
    command = git(root, "config", "--get", "hook.kvd.command").stdout.removesuffix("\n")
    assert as_git_runs_it(command, cwd=root) == 0
    assert recorder.wait() == [told(root)]
    assert as_git_runs_it(command, "rebase", cwd=root) == 0
    assert recorder.wait(2) == [told(root)] * 2
    (root / ".git" / "rebase-merge").mkdir()
    assert as_git_runs_it(command, cwd=root) == 0
    assert not (root / ".git" / "kvd-hook.pid").exists()
    assert as_git_runs_it(command, "0" * 40, "1" * 40, "1", cwd=root) == 0
    assert recorder.wait(3) == [told(root)] * 3


def test_git_runs_them(root: Path, isolated_home: Path, recorder: Recorder, programs: Path, git: Git) -> None:
    """Beside a hook file, and where core.hooksPath is elsewhere."""
    (programs / "git").unlink()
    if not find_repository(str(root)).configured:
        pytest.skip("this git runs no hooks of its configuration")
    seen = isolated_home / "seen"
    hook(root / ".git" / "hooks" / "post-checkout", f"#!/bin/sh\ntouch {seen}\nexit 3\n")
    install(root)
    git(root, "checkout", "-q", "-b", "other", status=1)
    assert seen.exists()
    assert recorder.wait() == [told(root)]
    git(root, "config", "core.hooksPath", "/dev/null")
    change(root, git, "second")
    assert recorder.wait(2) == [told(root)] * 2
    git(root, "worktree", "add", "-q", str(isolated_home / "tree"))
    assert recorder.wait(3)[-1] == told(isolated_home / "tree")
    recorder.file.unlink()
    done = git(root, "checkout", "-q", "main")
    assert (done.stdout, done.stderr) == ("", "")


def test_another_git_comes_and_goes(root: Path, git: Git, git_says: Say, recorder: Recorder) -> None:
    theirs = hook(root / ".git" / "hooks" / "post-commit", "#!/bin/sh\n")
    install(root)
    git_says(NEW)
    assert hooks_of(root) == ALL_RUN
    install(root)
    assert [path.name for path in theirs.parent.iterdir()] == ["post-commit"]
    assert theirs.read_text() == "#!/bin/sh\n"
    git_says(OLD)
    assert hooks_of(root)["post-merge"] == ("kvd", False, f"git {OLD} runs no hooks of its config")
    install(root)
    assert hooks_of(root) == ALL_RUN
    assert config(root, git) == []
    git_says(NEW)
    uninstall(root)
    assert hooks_of(root)["post-merge"] == ("none", False, "")
    assert theirs.read_text() == "#!/bin/sh\n"


def test_what_switches_them_off(root: Path, git: Git, git_says: Say, recorder: Recorder) -> None:
    git_says("2.55.0.windows.1")
    install(root)
    git(root, "config", "hook.post-merge.enabled", "off")
    assert hooks_of(root)["post-merge"] == ("kvd", False, "hook.post-merge.enabled is false")
    assert hooks_of(root)["post-commit"] == ("kvd", True, "")
    git(root, "config", "hook.kvd.enabled", "false")
    assert hooks_of(root)["post-commit"] == ("kvd", False, "hook.kvd.enabled is false")
    git(root, "config", "--add", "hook.kvd.event", "")
    git(root, "config", "--add", "hook.kvd.event", "post-merge")
    assert hooks_of(root)["post-commit"] == ("none", False, "")
    uninstall(root)
    assert config(root, git) == ["hook.post-merge.enabled=off"]


@pytest.mark.parametrize("version", ["2.53.2", "2.9.5", "1.9", "of my own"])
def test_versions_without_them(root: Path, git_says: Say, version: str) -> None:
    git_says(version)
    assert not find_repository(str(root)).configured


@pytest.mark.parametrize("version", ["2.54.0-rc1", "2.55.GIT", "3.0.0", "2.60.1 (Apple Git-160)"])
def test_versions_with_them(root: Path, git_says: Say, version: str) -> None:
    git_says(version)
    assert find_repository(str(root)).configured


def test_a_configuration_that_is_being_written(root: Path, git: Git, git_says: Say) -> None:
    git_says(NEW)
    (root / ".git" / "config.lock").touch()
    with pytest.raises(KvdError, match="git config failed: could not lock config file") as caught:
        install(root)
    assert caught.value.hint.startswith("ls -l ")
