"""`kvd hooks` as people type it."""

from __future__ import annotations

from pathlib import Path

from kvd.hooks.script import EVENTS
from tests.conftest import Kvd

from .conftest import OLD, Git, hook


def test_installing_telling_and_removing(kvd: Kvd, root: Path, git: Git) -> None:
    hook(root / ".git" / "hooks" / "post-merge", "#!/bin/sh\n")
    lines = kvd.ok("hooks", "install", cwd=root).splitlines()
    folder = root / ".git" / "hooks"
    assert lines == [
        f"{root}: git {OLD}, hook files in {folder}",
        f"post-commit    kvd, {folder}/post-commit",
        f"post-checkout  kvd, {folder}/post-checkout",
        f"post-merge     kvd, {folder}/post-merge, after {folder}/post-merge.before-kvd",
        f"post-rewrite   kvd, {folder}/post-rewrite",
        f"note: there is no index of {root}, and without one they do nothing: kvd index",
    ]
    (folder / "post-commit").chmod(0o600)
    shown = kvd.ok("hooks", "status", "--repo", str(root)).splitlines()
    assert shown[1] == f"post-commit    kvd, {folder}/post-commit, NOT RUN: it is not executable"
    shown = kvd.ok("hooks", "uninstall", cwd=root).splitlines()
    assert shown[1:5] == [
        "post-commit    none",
        "post-checkout  none",
        f"post-merge     someone else's, {folder}/post-merge",
        "post-rewrite   none",
    ]


def test_as_json(kvd: Kvd, root: Path, git: Git) -> None:
    told = kvd.json("hooks", "install", cwd=root)
    assert kvd.json("hooks", "status", cwd=root) == told
    assert set(told) == {"repo", "git", "method", "folder", "hooks", "notes"}
    assert (told["repo"], told["git"], told["method"]) == (str(root), OLD, "files")
    place = f"{root}/.git/hooks/post-commit"
    assert told["hooks"][0] == {
        "event": "post-commit",
        "owner": "kvd",
        "place": place,
        "runs": True,
        "why": "",
        "before": "",
    }
    assert [entry["event"] for entry in told["hooks"]] == list(EVENTS)


def test_errors(kvd: Kvd, isolated_home: Path, root: Path) -> None:
    done = kvd.run("hooks", "install")
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == f"kvd: {kvd.folder} is in no git repository\nhint: git init\n"
    assert kvd.json("hooks", "status", "--repo", str(isolated_home))["error"]["code"] == "repository"
    (root / ".git" / "hooks").write_text("")
    done = kvd.run("hooks", "install", cwd=root)
    assert done.returncode == 1
    assert done.stderr.startswith(f"kvd: can't write the hook {root}/.git/hooks/post-commit: ")
    assert done.stderr.splitlines()[1].startswith("hint: ls -ld ")
