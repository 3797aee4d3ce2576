"""How daemons begin and end, with real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvd as package
from kvd import paths
from kvd.daemon.exclusive import Place
from kvd.errors import UnavailableError
from kvd.rpc import client as client_module
from kvd.rpc import framing, messages
from kvd.rpc.client import Client
from kvd.rpc.launch import connect_or_start, daemon_environment, try_connect
from tests.conftest import FakeDaemon, Kvd, poll
from tests.test_regular import put


@pytest.fixture
def old_daemon(kvd: Kvd, fake_model: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon("0.0.1")
    yield daemon
    daemon.end()


def pid_of(kvd: Kvd) -> int:
    return int(kvd.json("status")["daemon"]["pid"])


def in_thread(work: Any, *arguments: Any) -> tuple[threading.Thread, list[Any]]:
    """Start `work`; its result is appended to the list."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work(*arguments)))
    thread.start()
    return thread, results


def begun(count: int = 1) -> bool:
    """True when that many requests are at work."""
    client = Client.running()
    if client is None:
        return False
    with client:
        return bool(client.server["active"] >= count)


def test_status_starts_nothing(kvd: Kvd) -> None:
    assert "not running" in kvd.ok("status")
    assert kvd.json("status")["running"] is False
    assert try_connect() is None


def test_start_and_stop(kvd: Kvd) -> None:
    pid = int(kvd.ok("start").rsplit(maxsplit=1)[1])
    assert kvd.ok("start") == f"running, pid {pid}\n"
    assert pid_of(kvd) == pid
    assert kvd.ok("stop") == "stopped\n"
    assert kvd.ok("stop") == "not running\n"
    assert not paths.socket_file().exists()


def test_clients_that_come_together_start_one_daemon(kvd: Kvd) -> None:
    starts = [
        subprocess.Popen(kvd.command("start"), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        for _ in range(4)
    ]
    said = {start.communicate(timeout=60.0)[0] for start in starts}
    assert [start.returncode for start in starts] == [0, 0, 0, 0]
    assert said == {f"running, pid {pid_of(kvd)}\n"}


def test_a_second_daemon_ends_quietly(kvd: Kvd) -> None:
    kvd.ok("start")
    pid = pid_of(kvd)
    second = subprocess.run([sys.executable, "-m", "kvd.daemon"], capture_output=True, timeout=30.0, check=False)
    assert (second.returncode, second.stdout, second.stderr) == (0, b"", b"")
    assert pid_of(kvd) == pid


def test_a_stale_socket_heals(kvd: Kvd) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(paths.socket_file()))
    sock.close()
    assert paths.socket_file().exists()
    assert "not running" in kvd.ok("status")
    kvd.ok("start")


def test_a_daemon_that_ends_while_a_client_comes_is_replaced(kvd: Kvd) -> None:
    dying = socket.socket(socket.AF_UNIX)
    dying.bind(str(paths.socket_file()))
    dying.listen()

    def end() -> None:
        connection, _ = dying.accept()
        connection.recv(1)
        dying.close()
        connection.close()

    thread, _ = in_thread(end)
    with Client.connect() as client:
        assert client.server["version"] == package.__version__
    thread.join(10)


def test_killed_daemons_are_replaced(kvd: Kvd, repository: Path) -> None:
    kvd.ok("start")
    pid = pid_of(kvd)
    kvd.kill_daemon()
    assert paths.socket_file().exists()
    assert kvd.json("search", "session", "--repo", str(repository))["sources"]
    assert pid_of(kvd) != pid


def test_killed_while_indexing_and_the_next_command_goes_on(kvd: Kvd) -> None:
    files = 1000
    for number in range(files):
        body = "\n\n".join(f"def compute_{number}_{n}(value):\n    return value * {n}" for n in range(12))
        (kvd.folder / f"module_{number}.py").write_text(body)
    indexing = subprocess.Popen(
        kvd.command("index"), cwd=kvd.folder, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    stored: list[int] = []

    def some_are_stored() -> bool:
        assert indexing.poll() is None, "it was over before it could be killed"
        client = Client.running()
        if client is None:
            return False
        with client:
            indexes = client.call("status", {}, timeout=10.0)["indexes"]
        stored[:] = [entry["files"] for entry in indexes]
        return bool(stored and stored[0] > 0)

    poll(some_are_stored, 30.0)
    kvd.kill_daemon()
    said = indexing.communicate(timeout=30.0)[1]
    assert indexing.returncode == 3
    assert "kvd: the daemon stopped while it was at work\nhint: " in said
    summary = kvd.json("index")
    assert summary["files"] == files
    # What was stored before the kill was not done again.
    assert summary["unchanged"] >= stored[0]
    assert summary["added"] == files - summary["unchanged"]


def test_an_idle_daemon_of_another_version_is_replaced(kvd: Kvd, old_daemon: FakeDaemon) -> None:
    assert kvd.json("status")["daemon"]["version"] == "0.0.1"
    kvd.ok("start")
    daemon = kvd.json("status")["daemon"]
    assert daemon["version"] == package.__version__
    assert daemon["pid"] != old_daemon.process.pid
    assert old_daemon.process.wait(10.0) == 0


def test_a_busy_daemon_of_another_version_is_left_alone(kvd: Kvd, old_daemon: FakeDaemon, repository: Path) -> None:
    client = Client.running()
    assert client is not None
    with client:
        ask = {"question": "count 100 session is expired", "repo": str(repository)}
        thread, results = in_thread(client.call, "ask", ask)
        poll(begun)
        refused = kvd.run("search", "session", "--repo", str(repository))
        assert refused.returncode == 6
        assert refused.stderr == "kvd: the daemon is kvd 0.0.1 and still at work\nhint: kvd stop\n"
        thread.join(30.0)
    assert results[0]["answer"] == "It is in [1]."


@pytest.mark.parametrize("how", ["stop", "SIGTERM"])
def test_stopping_drains(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path, how: str) -> None:
    ask = in_thread(kvd.run, "ask", "count 60 session is expired", "--repo", str(repository))
    poll(begun)
    if how == "stop":
        stopped = kvd.run("stop")
        assert (stopped.returncode, stopped.stdout) == (0, "stopped\n")
        assert "waiting for 1 request " in stopped.stderr
    else:
        fake_daemon.process.terminate()
    assert fake_daemon.process.wait(20.0) == 0
    ask[0].join(20.0)
    assert ask[1][0].returncode == 0
    assert ask[1][0].stdout.startswith("word word ")


def test_answers_that_are_finished_can_be_read_after_the_end(fake_daemon: FakeDaemon, repository: Path) -> None:
    sockets = [connect_or_start() for _ in range(2)]
    ask = {"question": "pour 1500 session is expired", "repo": str(repository), "progressToken": 1}
    for sock in sockets:
        sock.sendall(framing.encode(messages.request(1, "ask", ask)))
    poll(lambda: paths.log_file().read_text().count("ask ok") == 2)
    fake_daemon.process.terminate()
    # Nobody can come any more: what is left to do is to be read.
    poll(lambda: not paths.socket_file().exists())
    reader = framing.SocketReader(sockets[0])
    while "result" not in (message := framing.decode(reader.read_body() or b"")):
        pass
    assert message["id"] == 1
    # The other one is not waited for as long as it likes.
    assert fake_daemon.process.wait(15.0) == 0
    for sock in sockets:
        sock.close()
    assert "Traceback" not in paths.log_file().read_text()


def test_a_command_that_comes_while_stopping_gets_the_next_daemon(
    kvd: Kvd, fake_daemon: FakeDaemon, repository: Path
) -> None:
    ask = in_thread(kvd.run, "ask", "count 60 session is expired", "--repo", str(repository))
    poll(begun)
    fake_daemon.process.terminate()
    found = kvd.json("search", "session", "--repo", str(repository))
    assert found["sources"]
    ask[0].join(20.0)
    assert ask[1][0].returncode == 0
    assert pid_of(kvd) != fake_daemon.process.pid


def test_stopping_now_cancels(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    ask = in_thread(kvd.run, "ask", "slow session is expired", "--repo", str(repository))
    poll(begun)
    assert kvd.ok("stop", "--now") == "stopped\n"
    assert fake_daemon.process.wait(20.0) == 0
    ask[0].join(20.0)
    assert ask[1][0].returncode == 130


def test_a_second_sigterm_cancels(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    ask = in_thread(kvd.run, "ask", "slow session is expired", "--repo", str(repository))
    poll(begun)
    fake_daemon.process.terminate()

    def stopping() -> bool:
        client = Client.running()
        assert client is not None
        with client:
            return bool(client.server["stopping"])

    poll(stopping)
    fake_daemon.process.terminate()
    assert fake_daemon.process.wait(20.0) == 0
    ask[0].join(20.0)
    assert ask[1][0].returncode == 130


def test_a_frozen_daemon_is_told_of_and_can_be_killed(fake_daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_ANSWER_SECONDS", 0.3)
    os.kill(fake_daemon.process.pid, signal.SIGSTOP)
    with pytest.raises(UnavailableError) as caught:
        Client.connect()
    assert caught.value.message == "the daemon does not answer"
    assert caught.value.hint == "kvd stop --now"
    sock = try_connect()
    assert sock is not None
    with Client(sock) as client:
        client.kill()
        assert client.wait_closed(10.0)
    assert fake_daemon.process.wait(10.0) == -signal.SIGKILL


def test_a_removed_socket_is_noticed(isolated_home: Path) -> None:
    place = Place.take()
    assert place is not None
    assert Place.take() is None
    assert place.is_ours()
    paths.socket_file().unlink()
    assert not place.is_ours()
    place.socket.close()
    place.leave()
    again = Place.take()
    assert again is not None
    again.socket.close()
    again.leave()
    assert not paths.socket_file().exists()


def test_gits_variables_do_not_reach_the_daemon(kvd: Kvd, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere/.git")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert not [name for name in daemon_environment() if name.startswith("GIT_")]
    found = kvd.json("search", "session", cwd=repository / "src")
    assert found["repo"] == str(repository)


def test_folders_that_cannot_be_made(kvd: Kvd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/state")
    done = kvd.run("start")
    assert done.returncode == 3
    assert done.stderr.startswith("kvd: can't make the folder /dev/null/state/kvd")
    assert json.loads(kvd.run("gc", "--json").stdout)["error"]["code"] == "unavailable"


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_log_that_is_no_file_is_said(isolated_home: Path, kind: str) -> None:
    put(paths.log_file(), kind)
    with pytest.raises(UnavailableError, match=f"can't write .*: it is a (named )?{kind}, not a file") as caught:
        connect_or_start()
    assert str(paths.log_file()) in caught.value.hint


@pytest.mark.parametrize("name", ["daemon.sock", "daemon.lock"])
def test_a_folder_in_the_place_of_socket_or_lock_is_named(isolated_home: Path, name: str) -> None:
    file = paths.runtime_dir() / name
    file.mkdir()
    with pytest.raises(UnavailableError, match=f"can't make {file}: ") as caught:
        Place.take()
    assert caught.value.hint == f"remove {file}"


def test_a_daemon_that_does_not_start_says_why(isolated_home: Path) -> None:
    paths.log_file().write_text("kvd: what another one said\n")
    lock = paths.runtime_dir() / "daemon.lock"
    lock.symlink_to("/nowhere/at/all")
    with pytest.raises(UnavailableError) as caught:
        connect_or_start()
    assert caught.value.message == f"the daemon did not start: can't make {lock}: No such file or directory"
    assert caught.value.hint == f"remove {lock}"


def test_a_runtime_folder_open_to_others_is_refused(kvd: Kvd) -> None:
    paths.runtime_dir().chmod(0o777)
    done = kvd.run("start")
    assert done.returncode == 3
    assert "is not yours alone" in done.stderr


def test_a_long_runtime_path_is_replaced(kvd: Kvd, monkeypatch: pytest.MonkeyPatch) -> None:
    long = Path(os.environ["XDG_RUNTIME_DIR"]) / ("x" * 120)
    long.mkdir(mode=0o700)
    with monkeypatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(long))
        folder = paths.runtime_dir()
        try:
            kvd.ok("start")
            assert len(str(paths.socket_file())) < 100
            kvd.ok("stop")
        finally:
            (folder / "daemon.lock").unlink(missing_ok=True)
            folder.rmdir()
