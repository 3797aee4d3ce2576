"""Clients that do their worst, over real sockets, while an honest one is served."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kvd import paths
from kvd.daemon.admission import MAX_CLIENTS
from kvd.rpc.client import Client
from tests.conftest import FakeDaemon, Kvd, poll

from .test_clients import Raw, engine

PATIENCE = 10.0
"""Seconds in which the honest client has to have its answer, whatever the others do."""


@pytest.fixture
def client(fake_daemon: FakeDaemon) -> Iterator[Client]:
    with Client.connect() as client:
        yield client


def framed(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def pouring(data: bytes, clients: int = 1, reads: bool = True) -> Iterator[list[int]]:
    """So many clients send `data` over and over again, each from a thread; gives how many bytes each has sent."""
    stop = threading.Event()
    sent = [0] * clients

    def pour(number: int) -> None:
        while not stop.is_set():
            raw = Raw()
            raw.socket.settimeout(0.05)
            with raw.socket, contextlib.suppress(OSError):
                while not stop.is_set():
                    with contextlib.suppress(TimeoutError):
                        sent[number] += raw.socket.send(data[sent[number] % len(data) :])
                    if reads:
                        with contextlib.suppress(TimeoutError):
                            raw.socket.recv(1 << 20, socket.MSG_DONTWAIT)
            time.sleep(0.01)

    threads = [threading.Thread(target=pour, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield sent
    finally:
        stop.set()
        for thread in threads:
            thread.join(10.0)


def request(method: str, params: str = "{}", number: str = "1") -> bytes:
    return framed(
        b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":%b}' % tuple(map(str.encode, (number, method, params)))
    )


FLOODS = {
    "unknown methods": request("x" * 500),
    "garbage": framed(b"\xff\xfe garbage") * 50,
    "deep nesting": framed(b"[" * 500_000),
    "a million objects": framed(b"[" + b"{}," * 340_000 + b"{}]"),
    "huge numbers": request("status", "{}", "9" * 4_000) + request("search", '{"query":"x","repo":"/","top_k":1e999}'),
    "statuses": b"".join(request("status", number=str(n)) for n in range(32)),
    "no messages": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "endless header": b"X: y\r\n" * 10_000,
    "a gigabyte": b"Content-Length: 1073741824\r\n\r\n" + b"x" * 100_000,
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_leaves_others_alone(client: Client, fake_daemon: FakeDaemon, repository: Path, flood: bytes) -> None:
    client.call("search", {"query": "session", "repo": str(repository)}, timeout=60.0)
    before = resident_bytes(fake_daemon.process.pid)
    with pouring(flood, clients=4) as sent:
        poll(lambda: all(sent))
        for _ in range(3):
            assert client.call("status", {}, timeout=PATIENCE)["running"]
            found = client.call("search", {"query": "session", "repo": str(repository)}, timeout=PATIENCE)
            assert found["sources"]
        with Client.connect() as late:
            assert late.call("status", {}, timeout=PATIENCE)["running"]
        grown = resident_bytes(fake_daemon.process.pid) - before
    assert grown < 300e6
    assert fake_daemon.process.poll() is None


def test_one_client_that_searches_all_the_time(client: Client, repository: Path) -> None:
    params = f'{{"query":"session","repo":"{repository}"}}'
    with pouring(b"".join(request("search", params, str(n)) for n in range(32)), clients=2) as sent:
        poll(lambda: all(sent))
        for _ in range(3):
            assert client.call("search", {"query": "paint", "repo": str(repository)}, timeout=PATIENCE)["sources"]


def test_readers_that_never_read_take_little_memory(client: Client, fake_daemon: FakeDaemon, repository: Path) -> None:
    """Each of them has 40 MB of answer coming."""
    client.call("ask", {"question": "say session is expired", "repo": str(repository)}, timeout=60.0)
    before = resident_bytes(fake_daemon.process.pid)
    with ExitStack() as stack:
        for _ in range(4):
            raw = Raw()
            stack.enter_context(raw.socket)
            ask = {"question": "pour 40000 session is expired", "repo": str(repository), "progressToken": 1}
            raw.request(1, "ask", ask)
        # One after the other loses its place.
        poll(lambda: paths.log_file().read_text().count("closed a client that does not read") == 4, 60.0)
        answer = client.call("ask", {"question": "say session is expired", "repo": str(repository)}, timeout=60.0)
        assert answer["answer"] == "session is expired"
        assert resident_bytes(fake_daemon.process.pid) - before < 60e6
    poll(lambda: engine(client)["state"] == "ready")


def test_answers_that_nobody_takes_keep_no_connection(client: Client, fake_daemon: FakeDaemon) -> None:
    """A client that is told of its last mistake and does not read that either is let go all the same."""
    files = Path(f"/proc/{fake_daemon.process.pid}/fd")
    before = len(list(files.iterdir()))
    with ExitStack() as stack:
        for _ in range(5):
            raw = Raw()
            stack.enter_context(raw.socket)
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            raw.send(request("x" * 1000) * 230 + b"no header at all\r\n\r\n")
        poll(lambda: len(list(files.iterdir())) <= before, 30.0)
        assert client.call("status", {}, timeout=PATIENCE)["daemon"]["clients"] == 1


def test_half_messages_of_everybody_hold_up_nobody(client: Client) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_CLIENTS - 2):
            raw = Raw()
            stack.enter_context(raw.socket)
            raw.send(b"Content-Length: 1000000\r\n\r\n" + b"x" * 50_000)
        assert client.call("status", {}, timeout=PATIENCE)["running"]


HONEST = """
import sys
from kvd.rpc.client import Client
with Client.connect() as client:
    print("connected", flush=True)
    for line in sys.stdin:
        print(client.call("status", {}, timeout=30.0)["running"], flush=True)
"""


def test_thousands_of_connections(fake_daemon: FakeDaemon) -> None:
    command = [sys.executable, "-c", HONEST]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as honest,
        ExitStack() as crowd,
    ):
        assert honest.stdin is not None
        assert honest.stdout is not None
        assert honest.stdout.readline() == "connected\n"
        for number in range(2000):
            crowd.enter_context(Raw().socket)
            if number % 500 == 0:
                print("", file=honest.stdin, flush=True)
                # It has been silent for longer than any of the crowd, but it is not the crowd.
                assert honest.stdout.readline() == "True\n"
        print("", file=honest.stdin, flush=True)
        assert honest.stdout.readline() == "True\n"
        with Client.connect() as late:
            assert late.call("status", {}, timeout=PATIENCE)["daemon"]["clients"] <= MAX_CLIENTS
        honest.stdin.close()
    assert honest.returncode == 0


def test_few_files_mean_few_clients(kvd: Kvd, fake_model: Path, repository: Path) -> None:
    daemon = FakeDaemon(prefix=["sh", "-c", 'ulimit -n 300 && exec "$@"', "sh"])
    try:
        with ExitStack() as crowd:
            for _ in range(400):
                crowd.enter_context(Raw().socket)
            assert kvd.json("search", "session", "--repo", str(repository))["sources"]
    finally:
        daemon.end()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_is_not_served(fake_daemon: FakeDaemon, client: Client, isolated_home: Path) -> None:
    """Where nothing but the kernel's word on who it is keeps them out."""
    opened = [isolated_home, paths.runtime_dir().parent, paths.runtime_dir(), paths.socket_file()]
    path = str(paths.socket_file())
    for file in opened:
        file.chmod(0o777)
    assert as_nobody(lambda: exchange(path, request("status"))) == b"closed"
    assert exchange(path, request("status")).startswith(b"Content-Length")
    # As it is made, they don't even get that far.
    for file in opened:
        file.chmod(0o600 if file.is_socket() else 0o700)
    assert as_nobody(lambda: exchange(path, request("status"))) == b"Permission denied"
    assert "refused a client of another user" in paths.log_file().read_text()


def exchange(path: str, data: bytes) -> bytes:
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10.0)
            sock.connect(path)
            with contextlib.suppress(BrokenPipeError):
                sock.sendall(data)
            return sock.recv(100) or b"closed"
    except ConnectionError:
        return b"closed"
    except OSError as error:
        return str(error.strerror).encode()


def as_nobody(work: Callable[[], bytes]) -> bytes:
    """What `work` gives in a process of another user."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of threads; the child calls nothing that waits for one.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        os.write(writer, work())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as result:
        data = result.read()
    os.waitpid(pid, 0)
    return data
