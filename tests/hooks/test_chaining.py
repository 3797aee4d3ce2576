"""Hooks that were there before: they go on running as they did, and come back as they were."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from kvd.errors import KvdError
from kvd.hooks.script import EVENTS

from .conftest import Git, Recorder, change, hook, hooks_of, install, told, uninstall

pytestmark = pytest.mark.usefixtures("hurried")


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of all that is in a folder; of links where they lead."""
    return {
        entry.name: (
            stat.S_IMODE(entry.lstat().st_mode),
            os.readlink(entry).encode() if entry.is_symlink() else entry.read_bytes(),
        )
        for entry in folder.iterdir()
        if not entry.is_dir()
    }


def test_kvd_alone(root: Path, git: Git, recorder: Recorder) -> None:
    install(root)
    assert hooks_of(root) == dict.fromkeys(EVENTS, ("kvd", True, ""))
    before = tree(root / ".git" / "hooks")
    assert set(before) == set(EVENTS)
    install(root)
    assert tree(root / ".git" / "hooks") == before
    done = git(root, "commit", "-q", "--allow-empty", "-m", "x")
    assert (done.stdout, done.stderr) == ("", "")
    assert recorder.wait() == [told(root)]
    uninstall(root)
    assert tree(root / ".git" / "hooks") == {}
    assert hooks_of(root) == dict.fromkeys(EVENTS, ("none", False, ""))


def test_what_was_there_runs_first_and_decides_the_status(
    root: Path, isolated_home: Path, git: Git, recorder: Recorder
) -> None:
    seen = isolated_home / "seen"
    folder = root / ".git" / "hooks"
    for event in EVENTS:
        hook(folder / event, f'#!/bin/sh\necho "{event} $*: $(cat)" >>{seen}\nexit 3\n')
    install(root)
    git(root, "checkout", "-q", "-b", "other", status=1)
    git(root, "commit", "-q", "--amend", "--allow-empty", "-m", "again")
    head = git(root, "rev-parse", "HEAD").stdout.strip()
    first, second, third = seen.read_text().splitlines()
    assert first.startswith("post-checkout ")
    assert first.endswith(" 1: ")
    assert second == "post-commit : "
    assert third.startswith("post-rewrite amend: ")
    assert third.endswith(f" {head}")
    assert set(recorder.wait()) == {told(root)}
    # Git itself makes 1 of any.
    assert subprocess.run([folder / "post-merge", "0"], cwd=root, stdin=subprocess.DEVNULL, check=False).returncode == 3
    uninstall(root)
    git(root, "checkout", "-q", "main", status=1)


def test_uninstalling_puts_everything_back(root: Path, isolated_home: Path, git: Git, recorder: Recorder) -> None:
    folder = root / ".git" / "hooks"
    hook(folder / "post-commit", "#!/bin/sh\nexit 0", 0o750)
    hook(folder / "post-checkout", "\xff\r\n", 0o640)
    (folder / "post-merge").symlink_to("../../nowhere")
    hook(folder / "pre-commit", "#!/bin/sh\n")
    before = tree(folder)
    install(root)
    assert hooks_of(root) == dict.fromkeys(EVENTS, ("kvd", True, ""))
    install(root)
    uninstall(root)
    assert tree(folder) == before
    assert hooks_of(root) == {
        "post-commit": ("other", True, ""),
        "post-checkout": ("other", False, "it is not executable"),
        "post-merge": ("other", False, "it is not executable"),
        "post-rewrite": ("none", False, ""),
    }
    uninstall(root)
    assert tree(folder) == before


def test_what_git_did_not_run_is_not_run(root: Path, isolated_home: Path, git: Git, recorder: Recorder) -> None:
    seen = isolated_home / "seen"
    hook(root / ".git" / "hooks" / "post-commit", f"#!/bin/sh\ntouch {seen}\n", 0o644)
    install(root)
    done = subprocess.run([root / ".git" / "hooks" / "post-commit"], cwd=root, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert recorder.wait() == [told(root)]
    assert not seen.exists()


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/sh -e", "/usr/bin/env bash"])
def test_a_script_that_goes_by_its_name_keeps_it(
    root: Path, isolated_home: Path, git: Git, recorder: Recorder, shell: str
) -> None:
    """One program under several names, and another file beside it."""
    seen = isolated_home / "seen"
    folder = root / ".git" / "hooks"
    hook(folder / "all", f'#!{shell}\n. "$(dirname "$0")/common"\necho "$(basename "$0") $WORD $1" >>{seen}\nexit 4\n')
    hook(folder / "common", "WORD=beside\n", 0o644)
    (folder / "post-checkout").symlink_to("all")
    install(root)
    git(root, "checkout", "-q", "-b", "other", status=1)
    head = git(root, "rev-parse", "HEAD").stdout.strip()
    assert seen.read_text() == f"post-checkout beside {head}\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_script_that_asks_whether_it_is_read_in_is_not(
    root: Path, isolated_home: Path, git: Git, recorder: Recorder
) -> None:
    seen = isolated_home / "seen"
    text = f'#!/bin/bash\nmain() {{ touch {seen}; }}\nif [[ "${{BASH_SOURCE[0]}}" == "$0" ]]; then main; fi\n'
    hook(root / ".git" / "hooks" / "post-commit", text)
    install(root)
    git(root, "commit", "-q", "--allow-empty", "-m", "x")
    assert seen.exists()


def test_one_that_has_no_shebang_and_one_that_is_no_script(
    root: Path, isolated_home: Path, git: Git, recorder: Recorder
) -> None:
    seen = isolated_home / "seen"
    folder = root / ".git" / "hooks"
    hook(folder / "post-commit", f"touch {seen}\n")
    true = shutil.which("false")
    assert true is not None
    shutil.copy(true, folder / "post-checkout")
    install(root)
    git(root, "commit", "-q", "--allow-empty", "-m", "x")
    assert seen.exists()
    git(root, "checkout", "-q", "-b", "other", status=1)


def test_somebody_has_replaced_it_since(root: Path, git: Git, recorder: Recorder) -> None:
    """Neither of the two hooks is thrown away."""
    folder = root / ".git" / "hooks"
    hook(folder / "post-merge", "#!/bin/sh\n# first\n")
    install(root)
    hook(folder / "post-merge", "#!/bin/sh\n# second\n")
    assert hooks_of(root)["post-merge"] == ("other", True, "")
    with pytest.raises(KvdError, match=r"post-merge was replaced since kvd kept post-merge.before-kvd") as caught:
        install(root)
    assert caught.value.hint.startswith("ls -l ")
    uninstall(root)
    assert (folder / "post-merge").read_text().endswith("# second\n")
    assert (folder / "post-merge.before-kvd").read_text().endswith("# first\n")


def test_the_pre_commit_framework_has_moved_it(root: Path, isolated_home: Path, git: Git, recorder: Recorder) -> None:
    """It renames a hook that it finds, and runs it from its own."""
    seen = isolated_home / "seen"
    folder = root / ".git" / "hooks"
    hook(folder / "post-commit", f"#!/bin/sh\ntouch {seen}\n")
    install(root)
    (folder / "post-commit").rename(folder / "post-commit.legacy")
    hook(folder / "post-commit", '#!/bin/sh\nexec "$0.legacy" "$@"\n')
    before = tree(folder)
    install(root)
    assert tree(folder) == before
    assert hooks_of(root) == dict.fromkeys(EVENTS, ("kvd", True, ""))
    git(root, "commit", "-q", "--allow-empty", "-m", "x")
    assert recorder.wait() == [told(root)]
    assert seen.exists()
    uninstall(root)
    assert (folder / "post-commit.legacy").read_text() == f"#!/bin/sh\ntouch {seen}\n"
    assert hooks_of(root)["post-commit"] == ("other", True, "")


def test_an_install_that_was_cut_short(root: Path, git: Git, recorder: Recorder) -> None:
    """The old hook had got its other name, and nothing had come in its place."""
    folder = root / ".git" / "hooks"
    hook(folder / "post-commit.before-kvd", "#!/bin/sh\n# old\n")
    uninstall(root)
    assert tree(folder) == {"post-commit": (0o755, b"#!/bin/sh\n# old\n")}
    (folder / "post-commit").rename(folder / "post-commit.before-kvd")
    install(root)
    uninstall(root)
    assert tree(folder) == {"post-commit": (0o755, b"#!/bin/sh\n# old\n")}


def test_what_can_not_be_read_or_written(root: Path, git: Git, recorder: Recorder) -> None:
    folder = root / ".git" / "hooks"
    (folder / "post-rewrite").mkdir(parents=True)
    with pytest.raises(KvdError, match=r"can't read the hook .*post-rewrite: it is a folder, not a file"):
        install(root)
    assert [entry.name for entry in folder.iterdir()] == ["post-rewrite"]
    git(root, "config", "core.hooksPath", "/dev/null")
    with pytest.raises(KvdError, match="can't write the hook /dev/null/post-commit: Not a directory") as caught:
        install(root)
    assert caught.value.hint == "ls -ld /dev/null"


def test_it_may_be_moved(root: Path, isolated_home: Path, git: Git, recorder: Recorder) -> None:
    seen = isolated_home / "seen"
    hook(root / ".git" / "hooks" / "post-commit", f"#!/bin/sh\necho $0 >>{seen}\n")
    install(root)
    moved = isolated_home / "moved"
    root.rename(moved)
    change(moved, git, "later")
    assert seen.read_text() == ".git/hooks/post-commit\n"
    assert recorder.wait() == [told(moved)]
