"""Where hooks lie: core.hooksPath, husky, worktrees, bare repositories, submodules."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kvd.errors import RepositoryError
from kvd.hooks import states
from kvd.hooks.repository import find_repository
from kvd.hooks.script import EVENTS

from .conftest import Git, Recorder, change, hook, hooks_of, install, program, told, uninstall

pytestmark = pytest.mark.usefixtures("hurried")

ALL_RUN = dict.fromkeys(EVENTS, ("kvd", True, ""))


def test_a_relative_folder_of_hooks_counts_from_the_top(root: Path, git: Git, recorder: Recorder) -> None:
    git(root, "config", "core.hooksPath", "tools/my hooks")
    (root / "src").mkdir()
    install(root / "src")
    assert sorted(path.name for path in (root / "tools" / "my hooks").iterdir()) == sorted(EVENTS)
    assert hooks_of(root / "src") == ALL_RUN
    notes = states.status(find_repository(str(root)))["notes"]
    assert any("is in the work tree" in note for note in notes)
    git(root / "src", "commit", "-q", "--allow-empty", "-m", "x")
    assert recorder.wait() == [told(root)]
    uninstall(root)
    assert list((root / "tools" / "my hooks").iterdir()) == []


def test_a_folder_for_all_repositories(
    root: Path, isolated_home: Path, git: Git, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (isolated_home / "config").write_text("[core]\n\thooksPath = ~/all hooks\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(isolated_home / "config"))
    install(root)
    assert (isolated_home / "all hooks" / "post-merge").exists()
    assert hooks_of(root) == ALL_RUN
    notes = states.status(find_repository(str(root)))["notes"]
    assert any("core.hooksPath is in your global configuration" in note for note in notes)


def test_hooks_that_git_looks_for_elsewhere_now(root: Path, git: Git, recorder: Recorder) -> None:
    install(root)
    git(root, "config", "core.hooksPath", "/dev/null")
    assert hooks_of(root) == dict.fromkeys(EVENTS, ("kvd", False, "core.hooksPath is /dev/null"))
    uninstall(root)
    assert list((root / ".git" / "hooks").iterdir()) == []
    hook(root / ".git" / "hooks" / "post-merge", "#!/bin/sh\n")
    assert hooks_of(root)["post-merge"] == ("other", False, "core.hooksPath is /dev/null")


def husky(root: Path, git: Git) -> None:
    """What husky 9 lays out: programs that run the file of their name one folder up with `sh -e`."""
    git(root, "config", "core.hooksPath", ".husky/_")
    (root / ".husky" / "_").mkdir(parents=True)
    (root / ".husky" / "_" / ".gitignore").write_text("*")
    (root / ".husky" / "_" / "h").write_text(
        'name=$(basename "$0")\nfile=$(dirname "$(dirname "$0")")/$name\n[ -f "$file" ] || exit 0\n'
        '[ "${HUSKY-}" = 0 ] && exit 0\nsh -e "$file" "$@"\nexit $?\n'
    )
    for event in (*EVENTS, "pre-commit"):
        hook(root / ".husky" / "_" / event, '#!/usr/bin/env sh\n. "$(dirname "$0")/h"\n')


def test_husky(root: Path, isolated_home: Path, git: Git, recorder: Recorder) -> None:
    husky(root, git)
    seen = isolated_home / "seen"
    theirs = f'echo "$(basename "$0") $#" >>{seen}\nfalse\necho "not reached" >>{seen}\n'
    hook(root / ".husky" / "post-checkout", theirs, 0o644)
    before = {path: path.read_bytes() for path in (root / ".husky" / "_").iterdir()}
    install(root)
    assert hooks_of(root) == ALL_RUN
    assert {path: path.read_bytes() for path in (root / ".husky" / "_").iterdir()} == before
    change(root, git, "second")
    assert recorder.wait() == [told(root)]
    git(root, "checkout", "-q", "-b", "other", status=1)
    assert seen.read_text() == "post-checkout 3\n"
    assert recorder.wait(2) == [told(root)] * 2
    uninstall(root)
    assert (root / ".husky" / "post-checkout").read_text() == theirs
    assert sorted(path.name for path in (root / ".husky").iterdir()) == ["_", "post-checkout"]


def test_husky_that_was_not_run_here_yet(root: Path, git: Git, recorder: Recorder) -> None:
    git(root, "config", "core.hooksPath", ".husky/_")
    install(root)
    assert (root / ".husky" / "post-merge").exists()
    owner, runs, why = hooks_of(root)["post-merge"]
    assert (owner, runs) == ("kvd", False)
    assert why.startswith("husky has no ")


def test_a_worktree_shares_its_repository_s(root: Path, isolated_home: Path, git: Git, recorder: Recorder) -> None:
    other = isolated_home / "other tree"
    git(root, "worktree", "add", "-q", "-b", "other", str(other))
    install(other)
    assert (root / ".git" / "hooks" / "post-commit").exists()
    assert hooks_of(root) == hooks_of(other) == ALL_RUN
    change(other, git, "there")
    assert recorder.wait() == [told(other)]
    change(root, git, "here")
    assert recorder.wait(2) == [told(other), told(root)]


def test_a_bare_repository_has_those_of_its_worktrees(
    root: Path, isolated_home: Path, git: Git, recorder: Recorder
) -> None:
    bare, tree = isolated_home / "bare.git", isolated_home / "tree"
    git(root, "clone", "-q", "--bare", str(root), str(bare))
    install(bare)
    assert hooks_of(bare) == ALL_RUN
    git(bare, "worktree", "add", "-q", str(tree), "main")
    assert recorder.wait() == [told(tree)]
    change(tree, git, "there")
    assert recorder.wait(2) == [told(tree)] * 2


def test_a_submodule_has_its_own(root: Path, isolated_home: Path, git: Git, recorder: Recorder) -> None:
    inner = isolated_home / "inner"
    git(root, "clone", "-q", str(root), str(inner))
    git(root, "submodule", "add", "-q", str(inner), "sub")
    install(root / "sub")
    assert (root / ".git" / "modules" / "sub" / "hooks" / "post-commit").exists()
    assert hooks_of(root)["post-commit"] == ("none", False, "")
    change(root / "sub", git, "below")
    assert recorder.wait() == [told(root / "sub")]


def test_no_repository(root: Path, isolated_home: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    # What the caller's git is about is not what was asked for.
    monkeypatch.setenv("GIT_DIR", str(root / ".git"))
    with pytest.raises(RepositoryError, match="is in no git repository") as caught:
        find_repository(str(isolated_home))
    assert caught.value.hint == "git init"
    with pytest.raises(RepositoryError, match="there is no folder"):
        find_repository(str(isolated_home / "missing"))
    with pytest.raises(RepositoryError, match=r"git can't work in .*: this operation must be run in a work tree"):
        find_repository(str(root / ".git"))


def test_somebody_else_s_repository(root: Path, programs: Path) -> None:
    words = "fatal: detected dubious ownership in repository at 'x'\\nTo add an exception ..."
    program(programs / "git", f'printf "{words}" >&2\nexit 128')
    with pytest.raises(RepositoryError, match=r"git can't work in .*: detected dubious ownership in repository at 'x'"):
        find_repository(str(root))


def test_without_an_executable_git(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(Exception, match="there is no git"):
        find_repository(str(root))


def test_files_are_what_the_status_says(
    root: Path, git: Git, recorder: Recorder, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(root)
    (root / ".git" / "hooks" / "post-merge").chmod(0o644)
    assert hooks_of(root)["post-merge"] == ("kvd", False, "it is not executable")
    install(root)
    assert hooks_of(root) == ALL_RUN
    recorder.file.unlink()
    # There, no kvd is in PATH.
    monkeypatch.setenv("PATH", str(programs))
    assert hooks_of(root)["post-merge"] == ("kvd", True, f"there is no {recorder.file} any more: kvd hooks install")
    assert subprocess.run([root / ".git" / "hooks" / "post-merge"], cwd=root, check=False).returncode == 0
