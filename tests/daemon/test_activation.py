"""A daemon that is started as systemd starts it: with a socket that listens already."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from kvd import paths
from kvd.daemon.activation import listening_socket, passed_sockets
from kvd.daemon.exclusive import Place
from kvd.errors import UnavailableError
from kvd.rpc.client import Client
from kvd.rpc.launch import connect_to_running, try_connect
from kvd.rpc.peer import daemon_pid
from tests.conftest import Kvd, poll

_DAEMON = str(Path(__file__).parents[1] / "fakes" / "daemon.py")

_EXEC = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": sys.argv[2], "LISTEN_FDNAMES": "kvd.socket"}
os.execv(sys.executable, [sys.executable, sys.argv[3]])
"""


def listening(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    sock.listen(16)
    return sock


def started_with(sock: socket.socket, count: str = "1") -> subprocess.Popen[str]:
    """A daemon with the socket as its descriptor 3."""
    return subprocess.Popen(
        [sys.executable, "-c", _EXEC, str(sock.fileno()), count, _DAEMON],
        pass_fds=[sock.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


class Activator:
    """Listens, and starts a daemon whenever a client waits and none runs, as a socket unit does."""

    def __init__(self) -> None:
        self.socket = listening(paths.socket_file())
        self.daemons: list[subprocess.Popen[str]] = []
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self._ended not in select.select([self.socket.fileno(), self._ended], [], [])[0]:
            daemon = started_with(self.socket)
            self.daemons.append(daemon)
            daemon.communicate()

    def close(self) -> None:
        os.write(self._end, b".")
        for daemon in self.daemons:
            with suppress(OSError):
                daemon.kill()
        self._thread.join(30.0)
        self.socket.close()
        os.close(self._end)
        os.close(self._ended)


@pytest.fixture
def activator(isolated_home: Path) -> Iterator[Activator]:
    with closing(Activator()) as found:
        yield found


def test_commands_start_the_daemon_by_connecting_and_its_socket_outlives_it(
    activator: Activator, kvd: Kvd, repository: Path, fake_model: Path
) -> None:
    inode = paths.socket_file().stat().st_ino
    assert "not running" in kvd.ok("status")
    assert kvd.ok("stop") == "not running\n"
    assert activator.daemons == []
    assert kvd.json("ask", "when is the session expired", "--repo", str(repository))["answer"] == "It is in [1]."
    (daemon,) = activator.daemons
    assert daemon_pid() == daemon.pid
    state = kvd.json("status")
    assert state["daemon"]["pid"] == daemon.pid
    environment = Path(f"/proc/{state['engine']['pid']}/environ").read_bytes().split(b"\0")
    assert b"LISTEN_FDS" not in b" ".join(environment)
    assert passed_link(daemon.pid) not in links(state["engine"]["pid"])
    assert kvd.ok("stop") == "stopped\n"
    assert daemon.wait(10.0) == 0
    assert paths.socket_file().stat().st_ino == inode
    assert "not running" in kvd.ok("status")
    kvd.ok("start")
    assert len(activator.daemons) == 2


def links(pid: int) -> set[str]:
    """What a process's descriptors are."""
    return {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}


def passed_link(pid: int) -> str:
    link = os.readlink(f"/proc/{pid}/fd/3")
    assert link.startswith("socket:")
    return link


def test_a_daemon_that_is_not_given_one_socket_says_so(isolated_home: Path) -> None:
    with closing(listening(paths.socket_file())) as sock:
        daemon = started_with(sock, "2")
        said = daemon.communicate(timeout=60.0)[1]
    assert daemon.returncode == 3
    assert said == "kvd: systemd passed 2 sockets instead of one\nhint: kvd service install\n"


@pytest.mark.parametrize("pid", ["", "1", "x", str(os.getppid())])
def test_what_is_meant_for_another_process_is_ignored(pid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", pid)
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_FDNAMES", "kvd.socket")
    assert passed_sockets() == []
    assert not [name for name in os.environ if name.startswith("LISTEN_")]


@pytest.mark.parametrize(("count", "descriptors"), [("1", [3]), ("2", [3, 4]), ("0", []), ("-1", []), ("x", [])])
def test_what_is_meant_for_this_process_is_taken(
    count: str, descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The descriptors are pytest's own here.
    monkeypatch.setattr("kvd.daemon.activation.os.set_inheritable", lambda number, value: None)
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", count)
    assert passed_sockets() == descriptors
    assert not [name for name in os.environ if name.startswith("LISTEN_")]


def test_what_is_not_the_daemons_socket_is_refused(isolated_home: Path, tmp_path: Path) -> None:
    path = paths.socket_file()
    elsewhere = listening(isolated_home / "else.sock")
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(path))
    net = socket.create_server(("127.0.0.1", 0))
    file = (tmp_path / "file").open("w")
    for found, message in (
        (elsewhere.fileno(), f"the socket that systemd passed is {isolated_home / 'else.sock'}, not {path}"),
        (silent.fileno(), "the socket that systemd passed does not listen"),
        (net.fileno(), "the socket that systemd passed is no unix stream socket"),
        (file.fileno(), "what systemd passed is no socket: Socket operation on non-socket"),
        (9999, "what systemd passed is no socket: Bad file descriptor"),
    ):
        descriptor = os.dup(found) if found != 9999 else found
        with pytest.raises(UnavailableError, match=re.escape(message)):
            listening_socket([descriptor], path)
    for item in (elsewhere, silent, net, file):
        item.close()


def test_an_activated_daemon_waits_for_the_one_whose_socket_was_replaced(isolated_home: Path) -> None:
    first = Place.take()
    assert first is not None
    first.socket.close()
    paths.socket_file().unlink()
    sock = listening(paths.socket_file())
    taken: list[Place | None] = []
    second = threading.Thread(target=lambda: taken.append(Place.take([os.dup(sock.fileno())])))
    second.start()
    assert not first.is_ours()
    first.leave()
    second.join(30.0)
    (place,) = taken
    assert place is not None
    assert place.is_ours()
    place.leave()
    assert paths.socket_file().exists()
    place.socket.close()
    sock.close()


def test_who_listens_for_a_daemon_is_not_taken_for_it(isolated_home: Path) -> None:
    with closing(listening(paths.socket_file())):
        assert daemon_pid() is None
        assert connect_to_running() is None
        sock = try_connect()
        assert sock is not None
        with Client(sock) as client:
            # It would be this process.
            client.kill()


def test_a_lock_left_by_a_dead_daemon_names_nobody(isolated_home: Path) -> None:
    paths.lock_file().write_text(f"{os.getpid()}\n")
    assert daemon_pid() is None
    place = Place.take()
    assert place is not None
    assert daemon_pid() == os.getpid()
    place.socket.close()
    place.leave()


_IMPATIENT = f"""
import runpy
from kvd.daemon import server
server._CHORES_SECONDS, server._MINUTE_SECONDS = 0.02, 0.001
runpy.run_path({_DAEMON!r}, run_name="__main__")
"""


def test_a_daemon_without_clients_ends(isolated_home: Path) -> None:
    paths.config_file().parent.mkdir(parents=True)
    paths.config_file().write_text("daemon_idle_minutes = 0\n")
    daemon = subprocess.Popen([sys.executable, "-c", _IMPATIENT], stdin=subprocess.DEVNULL)
    try:
        clients: list[Client] = []

        def connected() -> bool:
            client = Client.running()
            if client is not None:
                clients.append(client)
            return bool(clients)

        poll(connected, 60.0)
        with clients[0] as client:

            def uptime() -> float:
                return float(client.call("status", {}, timeout=20.0)["daemon"]["uptime_seconds"])

            paths.config_file().write_text("daemon_idle_minutes = 100\n")
            # A connection is kept, however little it asks.
            before = uptime()
            poll(lambda: uptime() > before + 0.5, 60.0)
        assert daemon.wait(30.0) == 0
    finally:
        daemon.kill()
        daemon.wait(10.0)
    assert "no client for 100 minutes: the daemon ends" in paths.log_file().read_text()
    assert not paths.socket_file().exists()
