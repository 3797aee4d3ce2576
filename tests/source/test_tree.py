from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kvd.errors import RepositoryError
from kvd.git import git_environment
from kvd.source import tree
from kvd.source.tree import find_root, list_files, read_file

Git = Callable[..., bytes]


def write(root: Path, *names: str, text: str = "x\n") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def listed(root: Path) -> list[str]:
    return [entry.path for entry in list_files(root).files]


def without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")


@pytest.fixture
def repository(tmp_path: Path, git: Git) -> Path:
    """Nested and anchored ignore rules, tracked files that are ignored, ignore files in ignored folders."""
    git(tmp_path, "init", "-q")
    write(
        tmp_path,
        "a.py",
        "src/b.py",
        "src/coverage/kept.py",
        "coverage/dropped.py",
        "logs/x.log",
        "logs/keep.log",
        "build/out.py",
        "build/.keep/y.py",
        "src/gen/a.tmp",
        "src/gen/deep/b.tmp",
        "doc/one/frotz/f.md",
        "doc/frotz/g.md",
        "tracked.log",
        "name with space.py",
        "ünïcode.py",
        "line\nbreak.py",
    )
    write(tmp_path, ".gitignore", text="/coverage\n*.log\n!keep.log\nbuild/\n# comment\n\n doc/frotz\n**/frotz/f.md\n")
    write(tmp_path, "src/.gitignore", text="gen/*\n!gen/a.tmp\n")
    write(tmp_path, "build/.gitignore", text="!out.py\n")
    write(tmp_path, ".git/info/exclude", text="excluded.py\n")
    write(tmp_path, "excluded.py")
    git(tmp_path, "add", "-f", "tracked.log", "a.py")
    git(tmp_path, "commit", "-qm", "start")
    return tmp_path


def test_lists_what_git_lists(repository: Path, git: Git) -> None:
    names = git(repository, "ls-files", "-co", "--exclude-standard", "-z").split(b"\0")
    assert listed(repository) == sorted({os.fsdecode(name) for name in names if name})
    assert "src/coverage/kept.py" in listed(repository)
    assert "coverage/dropped.py" not in listed(repository)


def test_walk_without_git_agrees_with_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_git = listed(repository)
    without_git(monkeypatch)
    # Only the index knows that an ignored file is tracked.
    assert listed(repository) == [name for name in by_git if name != "tracked.log"]


def test_plain_folder(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "sub/b.py", "sub/c.log", "node_modules/x/y.js")
    write(tmp_path, "sub/.gitignore", text="*.log\n\\\n")
    assert listed(tmp_path) == ["a.py", "sub/.gitignore", "sub/b.py"]


def test_deleted_files_are_left_out(repository: Path) -> None:
    (repository / "a.py").unlink()
    found = list_files(repository)
    assert "a.py" not in [entry.path for entry in found.files]
    assert not found.skipped


def test_git_variables_of_a_hook_do_not_redirect(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = listed(repository)
    other = tmp_path_factory.mktemp("other")
    git(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / "index"))
    assert listed(repository) == expected
    assert "GIT_DIR" not in git_environment()
    assert git_environment()["GIT_CONFIG_GLOBAL"] == os.devnull


def test_repository_can_not_make_git_run_programs(repository: Path, git: Git) -> None:
    hook = repository / ".git" / "evil"
    hook.write_text(f"#!/bin/sh\ntouch {repository}/.git/ran\n")
    hook.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(hook))
    assert "a.py" in listed(repository)
    assert not (repository / ".git" / "ran").exists()


def test_an_index_that_names_files_outside_is_not_followed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, git: Git
) -> None:
    """git takes no such name, so it is written into git's file, with the checksum that belongs to it."""
    root = tmp_path / "inner"
    write(tmp_path, "secret.py")
    write(root, "aa/secret.py", "b.py")
    git(root, "init", "-q")
    git(root, "add", ".")
    file = root / ".git" / "index"
    data = file.read_bytes()[:-20].replace(b"aa/secret.py", b"../secret.py")
    file.write_bytes(data + hashlib.sha1(data).digest())
    shutil.rmtree(root / "aa")
    found = list_files(root)
    assert [entry.path for entry in found.files] == ["b.py"]
    assert found.skipped == {"outside": 1}


@pytest.mark.parametrize("use_git", [True, False])
def test_links_are_never_followed(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    git: Git,
    monkeypatch: pytest.MonkeyPatch,
    use_git: bool,
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    write(outside, "secret.py")
    write(tmp_path, "real/a.py")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "real" / "up").symlink_to("..")
    (tmp_path / "slash").symlink_to("/")
    (tmp_path / "out").symlink_to(outside)
    (tmp_path / "file.py").symlink_to(outside / "secret.py")
    (tmp_path / "inside.py").symlink_to("real/a.py")
    (tmp_path / "dangling.py").symlink_to("nowhere")
    if use_git:
        git(tmp_path, "init", "-q")
    else:
        without_git(monkeypatch)
    found = list_files(tmp_path)
    assert [entry.path for entry in found.files] == ["real/a.py"]
    assert found.skipped == {"symlink": 7}


def test_tracked_folder_replaced_by_a_link(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, git: Git) -> None:
    outside = tmp_path_factory.mktemp("outside")
    write(outside, "inner/a.py")
    git(tmp_path, "init", "-q")
    write(tmp_path, "lib/inner/a.py", "b.py")
    git(tmp_path, "add", ".")
    (tmp_path / "lib" / "inner" / "a.py").unlink()
    (tmp_path / "lib" / "inner").rmdir()
    (tmp_path / "lib").rmdir()
    (tmp_path / "lib").symlink_to(outside)
    assert listed(tmp_path) == ["b.py"]


def test_submodule_worktree_and_clone_inside_are_passed_over(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path_factory.mktemp("library")
    git(library, "init", "-q")
    write(library, "inner.py")
    git(library, "add", ".")
    git(library, "commit", "-qm", "start")
    git(tmp_path, "init", "-q")
    write(tmp_path, "a.py")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "start")
    git(tmp_path, "submodule", "--quiet", "add", str(library), "sub")
    git(tmp_path, "worktree", "add", "-q", "tree")
    git(tmp_path, "clone", "-q", str(library), "clone")
    found = list_files(tmp_path)
    assert [entry.path for entry in found.files] == [".gitmodules", "a.py"]
    assert found.skipped == {"submodule": 3}
    assert find_root(tmp_path / "tree") == tmp_path / "tree"
    assert listed(tmp_path / "tree") == ["a.py"]
    without_git(monkeypatch)
    found = list_files(tmp_path)
    assert [entry.path for entry in found.files] == [".gitmodules", "a.py"]
    assert found.skipped == {"submodule": 3}


@pytest.mark.parametrize("use_git", [True, False])
def test_names_that_are_not_unicode_are_counted(
    tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch, use_git: bool
) -> None:
    write(tmp_path, "a.py")
    try:
        (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.py"))).write_text("x = 1\n")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    if use_git:
        git(tmp_path, "init", "-q")
    else:
        without_git(monkeypatch)
    found = list_files(tmp_path)
    assert [entry.path for entry in found.files] == ["a.py"]
    assert found.skipped == {"unreadable name": 1}


def test_merge_conflict_names_a_file_once(repository: Path, git: Git) -> None:
    git(repository, "checkout", "-qb", "side")
    write(repository, "a.py", text="side\n")
    git(repository, "commit", "-qam", "side")
    git(repository, "checkout", "-q", "-")
    write(repository, "a.py", text="main\n")
    git(repository, "commit", "-qam", "main")
    with pytest.raises(Exception, match="merge"):
        git(repository, "merge", "-q", "side")
    assert listed(repository).count("a.py") == 1


def test_ignored_folder_that_is_asked_for(repository: Path) -> None:
    assert listed(repository / "build") == [".gitignore", ".keep/y.py", "out.py"]


def test_broken_repository_is_walked(tmp_path: Path) -> None:
    write(tmp_path, "a.py", ".git/HEAD")
    assert listed(tmp_path) == ["a.py"]


def test_special_files_are_not_files(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    os.mkfifo(tmp_path / "pipe")
    found = list_files(tmp_path)
    assert [entry.path for entry in found.files] == ["a.py"]
    assert found.skipped == {"not a file": 1}


def test_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_FILES", 3)
    write(tmp_path, *(f"f{number}.py" for number in range(6)))
    found = list_files(tmp_path)
    assert [entry.path for entry in found.files] == ["f0.py", "f1.py", "f2.py"]
    assert found.skipped["too many files"] >= 1


def test_deep_folders(tmp_path: Path) -> None:
    folder = tmp_path
    for _ in range(300):
        folder /= "d"
    folder.mkdir(parents=True)
    write(folder, "a.py")
    assert listed(tmp_path) == ["d/" * 300 + "a.py"]


def test_find_root(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert find_root(repository / "src" / "gen") == repository
    assert find_root(repository) == repository
    plain = tmp_path_factory.mktemp("plain")
    assert find_root(plain) == plain
    (plain / "link").symlink_to(repository / "src")
    assert find_root(plain / "link") == repository


def test_folders_that_nobody_means_to_have_indexed(isolated_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(isolated_home / "tmp"))
    (isolated_home / "tmp" / "work").mkdir(parents=True)
    for folder in (Path("/"), Path.home(), Path.home().parent, Path("/tmp"), isolated_home / "tmp"):
        with pytest.raises(RepositoryError, match="is no repository"):
            find_root(folder)
    assert find_root(isolated_home / "tmp" / "work") == isolated_home / "tmp" / "work"


def test_a_folder_without_git_may_be_no_project(tmp_path: Path, git: Git) -> None:
    write(tmp_path, "a.py", "b.py", "c.py")
    assert len(list_files(tmp_path, 3).files) == 3
    with pytest.raises(RepositoryError, match="more than 2 files") as caught:
        list_files(tmp_path, 2)
    assert "folder_files" in caught.value.hint
    git(tmp_path, "init", "-q")
    assert len(list_files(tmp_path, 2).files) == 3


def test_a_folder_of_repositories_is_none(tmp_path: Path) -> None:
    for name in ("one", "other"):
        subprocess.run(["git", "init", "-q", str(tmp_path / name)], check=True, env=git_environment())
        write(tmp_path / name, "a.py")
    with pytest.raises(RepositoryError, match="holds 2 repositories and no files of its own"):
        list_files(tmp_path)
    write(tmp_path, "b.py")
    assert listed(tmp_path) == ["b.py"]


@pytest.mark.parametrize("name", ["missing", "a.py", "nul\0", "x" * 5000])
def test_find_root_refuses(repository: Path, name: str) -> None:
    with pytest.raises(RepositoryError) as caught:
        find_root(repository / name)
    assert caught.value.exit_code == 5
    assert caught.value.hint


def test_read_file_is_bounded_and_plain(tmp_path: Path) -> None:
    write(tmp_path, "a.py", text="12345")
    (tmp_path / "link").symlink_to("a.py")
    os.mkfifo(tmp_path / "pipe")
    assert read_file(tmp_path, "a.py", 5) == b"12345"
    assert read_file(tmp_path, "a.py", 4) is None
    assert read_file(tmp_path, "missing", 4) is None
    assert read_file(tmp_path, "link", 10) is None
    assert read_file(tmp_path, "pipe", 10) is None
    assert read_file(tmp_path, ".", 10) is None


@pytest.mark.parametrize("folder", ["home", "/"])
def test_a_home_folder_is_not_taken_for_a_repository(isolated_home: Path, folder: str) -> None:
    with pytest.raises(RepositoryError, match="no repository"):
        find_root(isolated_home if folder == "home" else Path("/"))


def test_a_virtual_environment_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").write_text("home = /usr\n")
    (tmp_path / "env" / "inside.py").write_text("x = 1\n")
    (tmp_path / "own.py").write_text("x = 1\n")
    assert [file.path for file in list_files(tmp_path).files] == ["own.py"]
