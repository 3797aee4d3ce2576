"""What fails around the daemon: disks, locks, files and children that go. It says so in one line, and goes on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kvd import paths
from kvd.rpc.client import Client
from tests.conftest import FakeDaemon, Kvd, poll
from tests.fakes.tiny_bert import write_tiny_bert

EXPIRED = "when is the session expired"
AS_IT_WAS = "kvd: the index is as it was, and files may have changed since: "
SMALL_DISK = 'mount -t tmpfs -o size=4m,mode=700 none "$1" && shift && exec "$@"'
READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'


def mounting(script: str) -> list[str]:
    """A command that runs others where `script` has mounted something over the cache folder."""
    as_root = [] if os.getuid() == 0 else ["-r"]
    return ["unshare", *as_root, "-m", "sh", "-c", script, "sh", str(paths.cache_dir())]


@pytest.fixture
def may_mount(isolated_home: Path) -> None:
    try:
        done = subprocess.run([*mounting(SMALL_DISK), "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode:
        pytest.skip("nothing may be mounted here")


@pytest.fixture(autouse=True)
def settings(isolated_home: Path) -> Path:
    """The settings' file: nobody indexes what changes before a test does."""
    paths.config_file().parent.mkdir(parents=True)
    paths.config_file().write_text("watch = false\n")
    return paths.config_file()


@contextmanager
def daemon(prefix: Sequence[str] = ()) -> Iterator[FakeDaemon]:
    running = FakeDaemon(prefix=prefix)
    try:
        yield running
    finally:
        running.end()


def fill(file: Path) -> None:
    """Take all the room that is left."""
    with file.open("wb", buffering=0) as out, suppress(OSError):
        while True:
            out.write(b"x" * 4096)
    assert os.statvfs(file.parent).f_bavail == 0


def remove(folder: Path) -> None:
    """Remove a folder that somebody may just be writing in."""

    def removed() -> bool:
        with suppress(OSError):
            shutil.rmtree(folder)
            return True
        return False

    poll(removed)


def status() -> dict[str, Any]:
    """The daemon's."""
    client = Client.running()
    assert client is not None
    with client:
        return client.call("status", {}, timeout=30.0)


def change(repository: Path) -> None:
    """More than the index can take without growing."""
    text = "\n\n".join(f"def renew_session_{n}(lifetime):\n    return lifetime + {n}" for n in range(400))
    (repository / "src" / "renewal.py").write_text(text)


@pytest.mark.usefixtures("may_mount")
def test_a_full_disk(kvd: Kvd, fake_model: Path, repository: Path, isolated_home: Path) -> None:
    other = isolated_home / "other"
    other.mkdir()
    shutil.copy(repository / "src" / "session.py", other)
    with daemon(mounting(SMALL_DISK)) as running:
        kvd.ok("ask", f"store {EXPIRED}", "--repo", str(repository))
        filler = Path(f"/proc/{running.process.pid}/root{paths.cache_dir()}/filler")
        fill(filler)
        change(repository)
        # Asking and searching go on with what there is, and say so.
        for command in (("ask", f"store {EXPIRED}"), ("search", EXPIRED)):
            done = kvd.run(*command, "--repo", str(repository))
            assert done.returncode == 0, done.stderr
            assert "src/session.py:" in done.stdout
            (said,) = done.stderr.splitlines()
            assert re.match(f"{AS_IT_WAS}can't write the index .+: the disk is full$", said)
        result = kvd.json("search", EXPIRED, "--repo", str(repository))
        assert result["sources"]
        assert "disk is full" in result["notices"][0]
        # What can't be done without room is an error.
        for root in (repository, other):
            done = kvd.run("index", str(root))
            assert done.returncode == 1
            assert re.match(r"kvd: can't (write|lock) the index .+\nhint: check the disk's space", done.stderr)
        assert kvd.run("status").returncode == 0
        # There is room again.
        filler.unlink()
        done = kvd.run("ask", f"store {EXPIRED}", "--repo", str(repository))
        assert (done.returncode, done.stderr) == (0, "")
        assert "notices" not in kvd.json("search", EXPIRED, "--repo", str(repository))
        assert kvd.json("search", "renew_session_7", "--repo", str(repository))["sources"]


@pytest.mark.usefixtures("may_mount")
def test_a_cache_folder_that_is_read_only(kvd: Kvd, fake_model: Path, repository: Path) -> None:
    with daemon():
        kvd.ok("index", str(repository))
    with daemon(mounting(READ_ONLY)):
        change(repository)
        for command in (("ask", f"store {EXPIRED}"), ("search", EXPIRED)):
            done = kvd.run(*command, "--repo", str(repository))
            assert done.returncode == 0, done.stderr
            assert "src/session.py:" in done.stdout
            assert re.match(f"{AS_IT_WAS}can't lock the index .+: Read-only file system\n$", done.stderr)
        done = kvd.run("index", str(repository))
        assert done.returncode == 1
        assert done.stderr.endswith("hint: check the disk's space and rights\n")
        assert kvd.run("gc").returncode == 1
        assert "3 files" in kvd.ok("status")


@pytest.mark.parametrize("what", ["folder", "files"])
def test_a_cache_that_is_deleted_under_the_daemon(
    kvd: Kvd, fake_daemon: FakeDaemon, repository: Path, what: str
) -> None:
    store, vectors = paths.store_file(), paths.vectors_file()
    kvd.ok("ask", f"store {EXPIRED}", "--repo", str(repository))
    poll(store.exists)
    if what == "folder":
        remove(paths.cache_dir())
    else:
        for file in (paths.index_file(repository), store, vectors):
            file.unlink()
    assert kvd.run("status").returncode == 0
    assert kvd.run("gc").returncode == 0
    done = kvd.run("ask", f"store {EXPIRED}", "--repo", str(repository))
    assert (done.returncode, done.stderr) == (0, f"kvd: no index of {repository} yet: making one\n")
    assert "src/session.py:" in done.stdout
    poll(lambda: status()["store"].get("blocks") == 1)
    assert store.exists()
    assert vectors.exists()


@pytest.mark.parametrize("command", ["search", "ask"])
def test_an_index_that_is_damaged_deep_within(
    kvd: Kvd, fake_daemon: FakeDaemon, repository: Path, command: str
) -> None:
    kvd.ok("index", str(repository))
    poll(lambda: status()["indexes"][0]["pending_vectors"] == 0)
    data = paths.index_file(repository).read_bytes()
    assert b"import time" in data
    paths.index_file(repository).write_bytes(data.replace(b"import time", b"import \xff\xff\xff\xff"))
    done = kvd.run(command, EXPIRED, "--repo", str(repository))
    assert (done.returncode, done.stderr) == (0, "kvd: the index is made anew: damaged file\n")
    assert "src/session.py:" in done.stdout
    assert kvd.run(command, EXPIRED, "--repo", str(repository)).stderr == ""


def test_an_index_that_another_program_has_locked(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    kvd.ok("index", str(repository))
    code = (
        "import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1])\ndb.execute('BEGIN IMMEDIATE')\n"
        "print('locked', flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(paths.index_file(repository))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        # Who reads only does not wait.
        assert kvd.json("search", EXPIRED, "--repo", str(repository))["sources"]
        change(repository)
        began = time.monotonic()
        done = kvd.run("index", str(repository))
        assert time.monotonic() - began > 4.0
        assert done.returncode == 6
        who = f"{Path(f'/proc/{other.pid}/comm').read_text().strip()} (pid {other.pid})"
        assert done.stderr == (
            f"kvd: the index of {repository} is locked by {who}\n"
            f"hint: try again when it is done, or end it: kill {other.pid}\n"
        )
        other.communicate("")
    assert kvd.json("index", str(repository))["added"] == 1


def test_an_index_whose_writer_comes_to_an_end_is_waited_for(
    kvd: Kvd, fake_daemon: FakeDaemon, repository: Path
) -> None:
    kvd.ok("index", str(repository))
    change(repository)
    with sqlite3.connect(paths.index_file(repository), isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        indexing = subprocess.Popen(kvd.command("index", str(repository)), stdout=subprocess.PIPE, text=True)
        poll(lambda: status()["indexing"] == [str(repository)])
        other.execute("ROLLBACK")
    assert "1 added" in indexing.communicate(timeout=30.0)[0]
    assert indexing.returncode == 0


def embedders(of: int) -> list[int]:
    """The embedding children of a daemon."""
    children = Path(f"/proc/{of}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    return [pid for pid in pids if b"kvd.worker.embedding" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_an_embedder_that_hangs_is_not_waited_for_and_ends_with_the_daemon(
    kvd: Kvd, repository: Path, tmp_path: Path, settings: Path, how: str
) -> None:
    model = write_tiny_bert(tmp_path / "bert.gguf")
    settings.write_text(f'embedder = "{model}"\nwatch = false\n')
    search = ("search", EXPIRED, "--repo", str(repository))
    with daemon() as running:
        kvd.ok(*search)
        poll(lambda: status()["indexes"][0]["pending_vectors"] == 0)
        poll(lambda: kvd.run(*search).stderr == "", 60.0)
        (child,) = embedders(running.process.pid)
        os.kill(child, signal.SIGSTOP)
        if how == "kill":
            running.process.kill()
            running.process.wait(10.0)
            poll(lambda: gone(child))
            return
        said = "words alone were searched: the embedder did not answer within 3 s"
        began = time.monotonic()
        done = kvd.run(*search)
        assert time.monotonic() - began < 30.0
        assert done.returncode == 0
        assert "src/session.py:" in done.stdout
        assert done.stderr == f"kvd: {said}\n"
        # Who comes next does not wait, nor does the end.
        assert kvd.json(*search)["notices"] == [said]
        began = time.monotonic()
        assert kvd.ok("stop", "--now") == "stopped\n"
        assert time.monotonic() - began < 25.0
        assert gone(child)


def test_indexes_of_folders_that_are_gone(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    doomed = [repository.with_name(name) for name in ("one", "two")]
    for root in doomed:
        shutil.copytree(repository, root)
        kvd.ok("index", str(root))
    kvd.ok("index", str(repository))
    folder = paths.index_file(repository).parent
    assert len(list(folder.glob("*.db"))) == 3
    assert "index" not in kvd.ok("gc")
    for root in doomed:
        shutil.rmtree(root)
    first, second = kvd.ok("gc").splitlines()
    assert re.fullmatch(r"removed 2 indexes of folders that are gone \(\d+ kB\)", first)
    assert second.startswith("freed ")
    assert {file.stem for file in folder.iterdir()} == {paths.index_file(repository).stem}
    assert [index["repo"] for index in status()["indexes"]] == [str(repository)]
    assert kvd.json("gc")["indexes"] == {"removed": 0, "freed_bytes": 0}
