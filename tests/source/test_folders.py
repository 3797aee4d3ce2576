"""Which folders are to be watched, by git's own word."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kvd.source import folders
from kvd.source.folders import git_files, ignored, visible_folders
from kvd.source.watch import NoEventsError

from .conftest import Git


def make(root: Path, *paths: str) -> None:
    """Files, and folders where a path ends with `/`."""
    for path in paths:
        file = root / path
        (file if path.endswith("/") else file.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            file.write_text("x = 1\n")


def found(root: Path, *kept_out: Path) -> set[str]:
    given = list(visible_folders(root, frozenset(map(str, kept_out))))
    assert given[0] == ""
    assert len(given) == len(set(given))
    return set(given[1:])


def test_ignored_folders_are_left_out(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, "src/deep/a.py", "src/build/out.py", "node_modules/x/y/z.js", "empty/within/", "logs/only.log")
    make(tmp_path, "vendor/kept/a.py", "vendor/other/b.py")
    (tmp_path / ".gitignore").write_text("node_modules/\n*.log\nvendor/\n")
    (tmp_path / "src" / ".gitignore").write_text("/build\n")
    git(tmp_path, "add", "-f", "vendor/kept/a.py")
    # One in which only ignored files are now may get others; one that holds a tracked file counts although ignored.
    assert found(tmp_path) == {"src", "src/deep", "empty", "empty/within", "logs", "vendor", "vendor/kept"}


def test_links_other_repositories_and_own_files_are_left_out(tmp_path: Path, git: Git) -> None:
    root = tmp_path / "repo"
    make(root, "a/b.py", "inner/c.py", "own/index/d.db")
    for repository in (root, root / "inner"):
        git(repository, "init", "-q")
    (root / "loop").symlink_to(root)
    (root / "a" / "away").symlink_to("/")
    assert found(root, root / "own" / "index") == {"a", "own"}


def test_strange_names(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "-q")
    names = [":(glob)a", "-v", "two\nlines", "ends with blank ", "*", os.fsdecode(b"\xff")]
    make(tmp_path, *(f"{name}/f.py" for name in names), ":(top)build/f.py", "-n/build/f.py")
    (tmp_path / ".gitignore").write_text("*build/\n")
    assert found(tmp_path) == {*names, "-n"}
    asked = {":(top)build/", ":(glob)a/", "-n/build/f.py", os.fsdecode(b"\xff"), "gone/build/"}
    assert ignored(tmp_path, asked) == {":(top)build/", "-n/build/f.py", "gone/build/"}


def test_without_git_ignore_files_are_followed(tmp_path: Path) -> None:
    make(tmp_path, "src/a.py", "node_modules/x.js", "out/b.py", "empty/")
    (tmp_path / ".gitignore").write_text("out/\n")
    assert ignored(tmp_path, ["out/"]) is None
    assert found(tmp_path) == {"src", "empty"}
    assert git_files(tmp_path) == {}


def test_a_folder_is_given_before_it_is_looked_into(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "-q")
    for root in (tmp_path, tmp_path / "plain"):
        root.mkdir(exist_ok=True)
        given = visible_folders(root, frozenset())
        assert next(given) == ""
        make(root, "new/newer/a.py")
        assert "new" in given
        assert "new/newer" in given


def test_git_that_fails_on_the_way_is_told(tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, "a/b.py")
    monkeypatch.setattr(folders, "ignored", lambda root, paths: None if paths else set())
    with pytest.raises(NoEventsError, match="git can't say"):
        list(visible_folders(tmp_path, frozenset()))


def test_a_worktree_has_git_files_of_its_own(tmp_path: Path, git: Git) -> None:
    root, tree = tmp_path / "repo", tmp_path / "tree"
    make(root, "a.py")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    git(root, "worktree", "add", "-q", str(tree))
    common = {"exclude", "attributes"}
    assert git_files(root) == {f"{root}/.git": {"index", "config"}, f"{root}/.git/info": common}
    assert git_files(tree) == {
        f"{root}/.git/worktrees/tree": {"index"},
        f"{root}/.git/info": common,
        f"{root}/.git": {"config"},
    }


def test_every_folder_of_a_listed_file_is_among_them(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, *(f"{a}/{b}/{c}/f.py" for a in "abc" for b in "abc" for c in "abc"))
    (tmp_path / ".gitignore").write_text("a/b\n**/c/c\n!b/c/c\n")
    (tmp_path / "b" / ".gitignore").write_text("*\n!c\n!.gitignore\n")
    git(tmp_path, "add", "-f", "a/b/c/f.py")
    listed = subprocess.run(
        ["git", "-C", str(tmp_path), "ls-files", "-co", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    parents = {str(folder) for file in listed for folder in Path(file).parents} - {"."}
    assert parents
    assert parents <= found(tmp_path)
    assert not {folder for folder in found(tmp_path) if folder in (ignored(tmp_path, [f"{folder}/"]) or set())}
