"""What a hook does beside git: in the background, once for many, and nothing where nothing is wanted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvd import paths
from kvd.config import Settings
from kvd.hooks import handover
from kvd.recall.rank import search
from kvd.rpc.launch import try_connect
from kvd.service.indexer import update_index
from tests.conftest import Kvd, poll

from .conftest import Git, Recorder, change, hook, install, told


def test_many_commits_are_told_of_once(root: Path, git: Git, recorder: Recorder, go: Path) -> None:
    install(root)
    for number in range(8):
        git(root, "commit", "-q", "--allow-empty", "-m", str(number))
    poll(go.with_name("waits").exists)
    assert go.with_name("waits").read_text() == "waits\n"
    go.touch()
    recorder.wait()
    git(root, "commit", "-q", "--allow-empty", "-m", "later")
    assert recorder.wait(2) == [told(root)] * 2


def test_a_rebase_is_told_of_at_its_begin_and_end(root: Path, git: Git, recorder: Recorder, hurried: None) -> None:
    """However long it takes: here each commit takes longer than a hook waits."""
    git(root, "checkout", "-q", "-b", "topic")
    for number in range(20):
        change(root, git, f"topic_{number}")
    git(root, "checkout", "-q", "main")
    change(root, git, "meanwhile")
    git(root, "checkout", "-q", "topic")
    install(root)
    git(root, "rebase", "-q", "--exec", "sleep 0.1", "main")
    recorder.wait()
    poll(lambda: not (root / ".git" / "kvd-hook.pid").exists())
    assert recorder.wait(2) == [told(root)] * 2


@pytest.mark.parametrize("left", ["4194305", "", "of no process", None])
def test_what_a_dead_one_left_is_no_obstacle(
    root: Path, git: Git, recorder: Recorder, hurried: None, left: str | None
) -> None:
    """The first is above the largest process id that Linux gives; None: a folder, where nothing can be written."""
    install(root)
    file = root / ".git" / "kvd-hook.pid"
    if left is None:
        (file / "full").mkdir(parents=True)
    else:
        file.write_text(left)
    git(root, "commit", "-q", "--allow-empty", "-m", "x")
    assert recorder.wait() == [told(root)]


def test_it_can_be_turned_off(
    root: Path, isolated_home: Path, git: Git, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = isolated_home / "seen"
    hook(root / ".git" / "hooks" / "post-commit", f"#!/bin/sh\ntouch {seen}\n")
    install(root)
    monkeypatch.setenv("KVD_HOOKS", "0")
    git(root, "commit", "-q", "--allow-empty", "-m", "x")
    assert seen.exists()
    assert not (root / ".git" / "kvd-hook.pid").exists()


def test_kvd_is_gone(root: Path, git: Git, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    install(root)
    recorder.file.unlink()
    here = [str(Path(found).parent) for name in ("git", "sh") if (found := shutil.which(name))]
    monkeypatch.setenv("PATH", ":".join(here))
    if shutil.which("kvd"):
        pytest.skip("kvd lies beside git")
    for arguments in (("commit", "-q", "--allow-empty", "-m", "x"), ("checkout", "-q", "-b", "other")):
        done = git(root, *arguments)
        assert (done.stdout, done.stderr) == ("", "")
    assert not (root / ".git" / "kvd-hook.pid").exists()


def test_another_python_has_it(root: Path, git: Git, recorder: Recorder, programs: Path, hurried: None) -> None:
    install(root)
    recorder.file.rename(programs / "kvd")
    git(root, "commit", "-q", "--allow-empty", "-m", "x")
    assert recorder.wait() == [f"hooks run in {root} with 0"]


@pytest.mark.parametrize("file", ["plain", "/dev/full", None])
def test_git_waits_for_nothing(root: Path, git: Git, recorder: Recorder, file: str | None) -> None:
    """Neither for the second that the hook waits, nor for what it has started to close its output (None: a pipe)."""
    install(root)
    hook_file = root / ".git" / "hooks" / "post-commit"
    runs = []
    for _ in range(5):
        # None finds that another waits.
        (root / ".git" / "kvd-hook.pid").unlink(missing_ok=True)
        runs.append(timed(hook_file, root, None if file is None else root / file))
    # The quickest, as the machine may be busy. tests/bench/hooks.py measures how long git waits.
    assert min(took for took, cpu in runs) < 0.9
    assert min(cpu for took, cpu in runs) < 0.05


def timed(program: Path, cwd: Path, out: Path | None) -> tuple[float, float]:
    """Seconds until `program` has ended and its output is closed, and its CPU time."""
    before, begun = os.times(), time.monotonic()
    if out is None:
        subprocess.run([program], cwd=cwd, capture_output=True, check=True)
    else:
        with out.open("w") as file:
            subprocess.run([program], cwd=cwd, stdout=file, stderr=file, check=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.monotonic() - begun, cpu


def run_hooks(cwd: Path) -> None:
    """`kvd hooks run`, which says nothing and succeeds whatever happens."""
    done = subprocess.run(Kvd.command("hooks", "run"), cwd=cwd, capture_output=True, timeout=30.0, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_nothing_is_started_without_an_index(root: Path, isolated_home: Path, kvd: Kvd) -> None:
    before = sorted(isolated_home.rglob("*"))
    run_hooks(root)
    assert sorted(isolated_home.rglob("*")) == before
    assert not paths.has_index(root)


@pytest.mark.parametrize("place", [paths.socket_file, paths.log_file])
def test_a_daemon_that_can_not_be_had_is_no_fault(
    repository: Path, kvd: Kvd, capfd: pytest.CaptureFixture[str], place: Callable[[], Path]
) -> None:
    """A folder lies where its socket or its log should be."""
    paths.index_file(repository).touch()
    (place() / "full").mkdir(parents=True)
    # Not in a process of its own, which might outlive the test.
    handover._tell(repository)
    assert capfd.readouterr() == ("", "")


def test_a_rebase_reaches_the_index_at_once(repository: Path, kvd: Kvd, git: Git, go: Path) -> None:
    """A real daemon, which is not running, and does not watch. The hook's second lasts as long as the rebase."""
    paths.config_file().parent.mkdir(parents=True)
    paths.config_file().write_text("watch = false\n")
    update_index(repository, Settings(), lambda progress: None, lambda: False)
    git(repository, "checkout", "-q", "-b", "topic")
    for number in range(20):
        change(repository, git, f"topic_{number}")
    git(repository, "checkout", "-q", "-b", "base", "HEAD~20")
    change(repository, git, "meanwhile")
    git(repository, "checkout", "-q", "topic")
    kvd.ok("hooks", "install", "--repo", str(repository))
    assert try_connect() is None
    git(repository, "rebase", "-q", "base")
    assert try_connect() is None
    go.touch()

    def found(name: str) -> bool:
        return any(name in hit.chunk.text for hit in search(repository, name, 3))

    poll(lambda: found("topic_19") and found("meanwhile"))
    poll(lambda: "background index: " in paths.log_file().read_text())
    assert paths.log_file().read_text().count("index ok") == 1
    assert sys.executable in (repository / ".git" / "hooks" / "post-commit").read_text()
