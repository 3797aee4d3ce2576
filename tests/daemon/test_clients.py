"""What clients may do to the daemon: nothing that another one notices."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvd import paths
from kvd.daemon import admission
from kvd.daemon.connection import MAX_IN_FLIGHT
from kvd.errors import BusyError, CancelledError, KvdError, UnavailableError, UsageError
from kvd.rpc import framing, messages
from kvd.rpc.client import Client
from kvd.rpc.launch import try_connect
from tests.conftest import FakeDaemon, poll

pytestmark = pytest.mark.usefixtures("fake_daemon")


class Raw:
    """A client without manners."""

    def __init__(self) -> None:
        sock = try_connect()
        assert sock is not None
        self.socket = sock
        self.socket.settimeout(10.0)
        self.reader = framing.SocketReader(sock)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, number: Any, method: str, params: Any) -> None:
        self.send(framing.encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))

    def next(self) -> dict[str, Any]:
        body = self.reader.read_body()
        assert body is not None
        message = framing.decode(body)
        assert isinstance(message, dict)
        return message

    def answer(self) -> dict[str, Any]:
        """The next message that is no progress."""
        while "id" not in (message := self.next()):
            pass
        return message

    def closed(self) -> bool:
        try:
            return self.reader.read_body() is None
        except ConnectionError:
            return True


@pytest.fixture
def raw() -> Iterator[Raw]:
    client = Raw()
    yield client
    client.socket.close()


@pytest.fixture
def client() -> Iterator[Client]:
    with Client.connect() as client:
        yield client


def engine(client: Client) -> dict[str, Any]:
    state = client.call("status", {}, timeout=10.0)["engine"]
    assert isinstance(state, dict)
    return state


def test_folder_and_socket_are_for_this_user_alone() -> None:
    socket_file = paths.socket_file()
    assert stat.S_IMODE(socket_file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(socket_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.log_file().stat().st_mode) == 0o600


def test_initialize_tells_version_and_pid(raw: Raw, fake_daemon: FakeDaemon) -> None:
    raw.request("a", "initialize", {"version": "0.0.0"})
    result = raw.next()["result"]
    assert result == {
        "version": "0.1.0",
        "protocol": 1,
        "pid": fake_daemon.process.pid,
        "active": 0,
        "stopping": False,
        "environment": {},
    }


WRONG = [
    (b"not json", messages.PARSE_ERROR),
    (b"\xff\xfe", messages.PARSE_ERROR),
    (b"[" * 50_000, messages.PARSE_ERROR),
    (b"[]", messages.INVALID_REQUEST),
    (b'"x"', messages.INVALID_REQUEST),
    (b'{"jsonrpc":"2.0","id":1}', messages.INVALID_REQUEST),
    (b'{"jsonrpc":"2.0","id":1,"method":"nonsense"}', messages.METHOD_NOT_FOUND),
    (b'{"jsonrpc":"2.0","id":1,"method":"search","params":[1]}', UsageError.rpc_code),
    (b'{"jsonrpc":"2.0","id":1,"method":"search","params":{"query":5}}', UsageError.rpc_code),
    (b'{"jsonrpc":"2.0","id":1,"method":"shutdown","params":{"mode":"x"}}', UsageError.rpc_code),
    (b'{"jsonrpc":"2.0","id":1,"method":"index","params":{"path":"x"}}', UsageError.rpc_code),
]


def test_wrong_messages_get_errors_and_the_connection_stays(raw: Raw) -> None:
    for body, code in WRONG:
        raw.send(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        error = raw.next()["error"]
        assert error["code"] == code, body
        assert "\n" not in error["message"]
        assert set(error["data"]) == {"code", "message", "hint"}
        raw.request(2, "initialize", {"version": "x"})
        assert raw.next()["id"] == 2


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"Content-Length: 1073741824\r\n\r\n", b"\0" * 100_000]
)
def test_what_is_no_message_ends_the_connection_only(raw: Raw, client: Client, data: bytes) -> None:
    try:
        raw.send(data)
        assert raw.next()["error"]["code"] == messages.PARSE_ERROR
    except ConnectionError:
        # It was closed while there was more to come.
        pass
    assert raw.closed()
    assert client.call("status", {}, timeout=10.0)["running"]


def test_half_a_message_holds_up_nobody(raw: Raw, client: Client) -> None:
    raw.send(b"Content-Length: 1000\r\n\r\n{")
    assert client.call("status", {}, timeout=10.0)["running"]
    raw.socket.close()
    assert client.call("status", {}, timeout=10.0)["running"]


def test_unknown_notifications_and_cancels_are_ignored(raw: Raw) -> None:
    for method, params in (("ask", {}), ("nonsense", None), (messages.CANCEL, {"id": [1]}), (messages.CANCEL, None)):
        raw.send(framing.encode({"jsonrpc": "2.0", "method": method, "params": params}))
    raw.request(1, "initialize", {"version": "x"})
    assert raw.next()["id"] == 1


def test_requests_of_one_client_are_bounded(raw: Raw, repository: Path) -> None:
    for number in range(MAX_IN_FLIGHT + 1):
        raw.request(number, "ask", {"question": "slow session", "repo": str(repository)})
    # Four are answered at the same time, and twelve may wait.
    answers = [raw.answer() for _ in range(MAX_IN_FLIGHT + 1 - 4 - 12)]
    codes = {answer["error"]["data"]["code"] for answer in answers}
    assert codes == {"busy"}
    assert MAX_IN_FLIGHT in {answer["id"] for answer in answers}


def test_an_id_in_use_is_refused(raw: Raw, repository: Path) -> None:
    raw.request(7, "ask", {"question": "slow session", "repo": str(repository)})
    raw.request(7, "status", {})
    answer = raw.answer()
    assert answer["error"]["code"] == messages.INVALID_REQUEST
    assert answer["id"] == 7


def test_one_who_asks_and_never_reads_is_dropped(client: Client) -> None:
    """A flood of requests whose answers nobody takes blocks its own connection alone."""
    flood = Raw()
    stop = threading.Event()
    frame = framing.encode({"jsonrpc": "2.0", "id": 1, "method": "x" * 1000, "params": {}})

    def pour() -> None:
        flood.socket.settimeout(0.2)
        while not stop.is_set():
            try:
                flood.send(frame * 20)
            except OSError:
                return

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        for _ in range(20):
            assert client.call("status", {}, timeout=10.0)["running"]
    finally:
        stop.set()
        thread.join(10.0)
        flood.socket.close()
    assert client.call("status", {}, timeout=10.0)["daemon"]["pid"]


def test_silent_clients_make_room_for_new_ones(client: Client) -> None:
    with ExitStack() as stack:
        crowd = [Raw() for _ in range(admission.MAX_CLIENTS + 5)]
        for one in crowd:
            stack.enter_context(one.socket)
        late = stack.enter_context(Client.connect())
        assert late.call("status", {}, timeout=10.0)["daemon"]["clients"] <= admission.MAX_CLIENTS
        assert crowd[0].closed()


def test_cancel_stops_the_answer(raw: Raw, client: Client, repository: Path) -> None:
    raw.request(1, "ask", {"question": "slow session", "repo": str(repository), "progressToken": "t"})
    while (message := raw.next())["params"]["value"]["kind"] != "token":
        assert message["params"]["token"] == "t"
    raw.send(framing.encode({"jsonrpc": "2.0", "method": messages.CANCEL, "params": {"id": 1}}))
    answer = raw.answer()
    assert answer["error"]["code"] == CancelledError.rpc_code
    assert answer["error"]["data"]["code"] == "cancelled"
    poll(lambda: engine(client)["state"] == "ready")


def test_leaving_cancels_what_was_asked(raw: Raw, client: Client, repository: Path) -> None:
    raw.request(1, "ask", {"question": "slow session", "repo": str(repository), "progressToken": 1})
    while raw.next()["params"]["value"]["kind"] != "token":
        pass
    pid = engine(client)["pid"]
    assert engine(client)["state"] == "busy"
    raw.socket.close()
    poll(lambda: engine(client)["state"] == "ready")
    assert engine(client)["pid"] == pid
    assert client.call("status", {})["daemon"]["active"] == 0


def test_two_clients_are_answered_in_turn(repository: Path) -> None:
    answers: dict[str, str] = {}

    def one(name: str) -> None:
        with Client.connect() as client:
            params = {"question": f"say session {name}", "repo": str(repository)}
            answers[name] = client.call("ask", params)["answer"]

    threads = [threading.Thread(target=one, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert answers == {name: f"session {name}" for name in "abcd"}


@pytest.mark.parametrize("name", ["SIGILL", "SIGKILL"])
def test_the_engines_death_is_an_error_and_no_more(client: Client, repository: Path, name: str) -> None:
    heard: list[dict[str, Any]] = []
    ask = {"question": f"die {name} when the session is expired", "repo": str(repository)}
    with pytest.raises(UnavailableError, match=f"the engine stopped \\(signal {name}\\)") as caught:
        client.call("ask", ask, heard.append)
    assert caught.value.hint
    assert heard[-1]["kind"] == "token"
    again = client.call("ask", {**ask, "question": "say session is expired"})
    assert again["answer"] == "session is expired"


def test_too_many_questions_are_refused(repository: Path) -> None:
    with ExitStack() as stack:
        # As many as are answered at the same time, and a queue.
        crowd = [Raw() for _ in range(4 + 16)]
        for one in crowd:
            stack.enter_context(one.socket)
            one.request(1, "ask", {"question": "slow session", "repo": str(repository)})
        client = stack.enter_context(Client.connect())
        poll(lambda: engine(client).get("waiting") == 16)
        with pytest.raises(BusyError, match="16 questions are waiting"):
            client.call("ask", {"question": "say session is expired", "repo": str(repository)})


def test_the_log_tells_no_secrets(client: Client, repository: Path) -> None:
    client.call("ask", {"question": "say xyzzy session is expired", "repo": str(repository)})
    client.call("search", {"query": "plugh session", "repo": str(repository)})
    for question in ("die SIGKILL frotz session is expired", "fail frotz session is expired"):
        with pytest.raises(KvdError):
            client.call("ask", {"question": question, "repo": str(repository)})
    log = paths.log_file().read_text()
    assert "ask ok in" in log
    assert "ask failed (unavailable) in" in log
    assert "fake engine is up" in log
    for word in ("xyzzy", "plugh", "frotz", "is_expired", "lifetime"):
        assert word not in log


def test_another_users_connection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert admission.is_own(theirs)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getuid", lambda: 123456)
            assert not admission.is_own(theirs)


def test_a_large_question_is_a_usage_error(raw: Raw, repository: Path) -> None:
    raw.request(1, "ask", {"question": "x" * 1_000_000, "repo": str(repository)})
    error = raw.next()["error"]
    assert error["code"] == UsageError.rpc_code
    assert len(json.dumps(error)) < 1000
