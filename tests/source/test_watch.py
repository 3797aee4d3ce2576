"""The system's events for one root, as they are told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvd.source import watch
from kvd.source.watch import Changes, NoEventsError, Noticed, Watcher, file_system
from tests.conftest import poll

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are events on Linux only")


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    watcher = Watcher()
    yield watcher
    watcher.close()


class Told:
    """What was noticed under `root`, all of it taken together, and how often it was called for."""

    def __init__(self) -> None:
        self.calls = 0
        self.noticed = Noticed(self._called)
        self.changes = Changes()

    def _called(self) -> None:
        self.calls += 1

    def has(self, *paths: str) -> bool:
        new = self.noticed.take()
        self.changes.paths |= new.paths
        self.changes.anything |= new.anything
        self.changes.folders |= new.folders
        return self.changes.paths >= set(paths)


def begin(watcher: Watcher, root: Path, *folders: str, git: dict[str, set[str]] | None = None) -> Told:
    told = Told()
    watcher.watch(root, ["", *folders], git or {}, told.noticed, 100)
    return told


@pytest.mark.parametrize(
    ("change", "path", "folders"),
    [
        (lambda root: (root / "new.py").write_text("x"), "new.py", False),
        (lambda root: (root / "sub" / "a.py").write_text("y"), "sub/a.py", False),
        (lambda root: os.truncate(root / "sub" / "a.py", 0), "sub/a.py", False),
        (lambda root: (root / "sub" / "a.py").unlink(), "sub/a.py", False),
        (lambda root: (root / "sub" / "a.py").rename(root / "b.py"), "b.py", False),
        (lambda root: (root / "sub" / "a.py").rename(root / "b.py"), "sub/a.py", False),
        (lambda root: (root / "sub" / "deep").mkdir(), "sub/deep/", True),
        (lambda root: shutil.rmtree(root / "sub"), "sub/", True),
        (lambda root: (root / "sub").rename(root / "other"), "other/", True),
        (lambda root: (root / ".gitignore").write_text("x"), ".gitignore", True),
        (lambda root: (root / ".git").mkdir(), ".git/", True),
    ],
)
def test_changes_are_told(
    tmp_path: Path, watcher: Watcher, change: Callable[[Path], object], path: str, folders: bool
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.py").write_text("x")
    told = begin(watcher, tmp_path, "sub")
    change(tmp_path)
    poll(lambda: told.has(path))
    assert told.changes.folders == folders
    assert not told.changes.anything


def test_reading_and_what_is_not_watched_is_not_told(tmp_path: Path, watcher: Watcher) -> None:
    for folder in ("sub", "node_modules", ".git"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("x")
    told = begin(watcher, tmp_path, "sub", git={str(tmp_path / ".git"): {"index"}})
    (tmp_path / "sub" / "a.py").read_text()
    (tmp_path / "node_modules" / "a.py").write_text("y")
    (tmp_path / ".git" / "HEAD").write_text("y")
    (tmp_path / ".git" / "index").write_text("y")
    (tmp_path / "sub" / "last.py").write_text("y")
    poll(lambda: told.has("sub/last.py"))
    assert told.changes.paths == {".git/index", "sub/last.py"}
    assert told.changes.folders


def test_it_calls_once_until_what_it_has_is_taken(tmp_path: Path, watcher: Watcher) -> None:
    told = begin(watcher, tmp_path)
    for number in range(50):
        (tmp_path / f"{number}.py").write_text("x")
    poll(lambda: len(told.noticed._changes.paths) == 50)
    assert told.calls == 1
    taken = told.noticed.take()
    assert told.noticed.moment == 0.0
    (tmp_path / "more.py").write_text("x")
    poll(lambda: told.calls == 2)
    told.noticed.put_back(taken)
    # A late event of what was taken may have called for the second time.
    poll(lambda: told.has("0.py", "49.py", "more.py"))


def test_what_is_muted_is_passed_over_until_folders_may_have_changed(tmp_path: Path, watcher: Watcher) -> None:
    told = begin(watcher, tmp_path)
    told.noticed.mute(["debug.log"])
    (tmp_path / "debug.log").write_text("x")
    (tmp_path / "a.py").write_text("x")
    poll(lambda: told.has("a.py"))
    assert told.changes.paths == {"a.py"}
    (tmp_path / ".gitignore").write_text("x")
    poll(lambda: told.has(".gitignore"))
    (tmp_path / "debug.log").write_text("x")
    poll(lambda: told.has("debug.log"))


def test_too_much_or_lost_is_anything(tmp_path: Path, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_MOST_PATHS", 10)
    told = Told()
    held = watcher.watch(tmp_path, [""], {}, told.noticed, 100)
    for number in range(20):
        (tmp_path / f"{number}.py").write_text("x")
    poll(lambda: told.has() and told.changes.anything)
    assert not told.changes.folders
    held.on_queue_overflow()
    assert told.has()
    assert told.changes.folders


@pytest.mark.parametrize("how", ["deleted", "renamed"])
def test_the_end_of_a_root_is_told(tmp_path: Path, watcher: Watcher, how: str) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    told = begin(watcher, root, "sub")
    shutil.rmtree(root / "sub")
    poll(lambda: told.has("sub/"))
    assert not told.noticed.ended
    if how == "deleted":
        shutil.rmtree(root)
    else:
        root.rename(tmp_path / "other")
    poll(lambda: bool(told.noticed.ended))
    assert told.calls > 0


def test_two_roots_that_share_a_folder_do_not_share_its_end(tmp_path: Path, watcher: Watcher) -> None:
    (tmp_path / "inner").mkdir()
    outer, inner = Told(), Told()
    watcher.watch(tmp_path, ["", "inner"], {}, outer.noticed, 100)
    held = watcher.watch(tmp_path / "inner", [""], {}, inner.noticed, 100)
    (tmp_path / "inner" / "a.py").write_text("x")
    poll(lambda: outer.has("inner/a.py") and inner.has("a.py"))
    held.close()
    (tmp_path / "inner" / "b.py").write_text("x")
    poll(lambda: outer.has("inner/b.py"))
    assert not inner.has("b.py")


def test_folders_that_are_gone_or_links_are_passed_over(tmp_path: Path, watcher: Watcher) -> None:
    (tmp_path / "link").symlink_to("/")
    told = Told()
    held = watcher.watch(tmp_path, ["", "gone", "link"], {str(tmp_path / "none"): {"index"}}, told.noticed, 100)
    assert len(held) == 1


def test_what_can_not_be_watched_is_said(tmp_path: Path, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    with pytest.raises(NoEventsError, match="No such file"):
        watcher.watch(tmp_path / "gone", [""], {}, told.noticed, 100)
    (tmp_path / "sub").mkdir()
    with pytest.raises(NoEventsError, match="more than 1 folders"):
        watcher.watch(tmp_path, ["", "sub"], {}, told.noticed, 1)
    for kind in ("nfs4", "fuse.sshfs"):
        monkeypatch.setattr(watch, "file_system", lambda root, kind=kind: kind)
        with pytest.raises(NoEventsError, match=kind):
            watcher.watch(tmp_path, [""], {}, told.noticed, 100)
    (tmp_path / "a.py").write_text("x")
    watcher.close()
    assert told.calls == 0


def test_no_thread_is_left(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    watcher = Watcher()
    watcher.close()
    begin(watcher, tmp_path)
    assert len(set(threading.enumerate()) - before) == 1
    watcher.close()
    assert set(threading.enumerate()) == before


def test_types_of_file_systems(tmp_path: Path) -> None:
    assert file_system(Path("/proc")) == "proc"
    assert file_system(Path("/proc/self")) == "proc"
    said = subprocess.run(["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True).stdout
    assert file_system(tmp_path).startswith(said.strip()[:3])
