"""Bytes by chance against a real daemon: it answers with errors or closes the connection, and goes on."""

from __future__ import annotations

import json
import os
import re
import socket
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from kvd import paths
from kvd.errors import KvdError
from kvd.rpc import framing, messages
from kvd.rpc.client import Client
from kvd.rpc.launch import try_connect
from tests.conftest import FakeDaemon

NUMBERS = {kind.rpc_code for kind in KvdError.__subclasses__()} | {
    KvdError.rpc_code,
    messages.PARSE_ERROR,
    messages.INVALID_REQUEST,
    messages.METHOD_NOT_FOUND,
}
"""All that an error may have; an internal error is not among them."""

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["2.0", "", "/nowhere/at/all", "\ud800", "a\0b", "../..", "~", "x" * 25_000, "'\";--", "\u202e"]),
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from([10**400, -1, 2**63, 1e308]),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=8,
)
METHODS = ("initialize", "status", "metrics", "index", "search", "ask", "prefetch", messages.CANCEL, "nonsense")
MEMBERS = (
    *("path", "repo", "query", "question", "top_k", "paths", "languages", "rerank", "budget", "max_tokens"),
    *("reuse", "background", "progressToken", "version", "client", "id"),
)
PARAMS = st.dictionaries(st.sampled_from(MEMBERS), VALUES, max_size=6)
NOWHERE = {"path": "/nowhere/at/all", "repo": "/nowhere/at/all", "query": "x", "question": "x", "version": "0"}


def request(method: str, params: Any, number: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def valid(method: str, number: int) -> bytes:
    wanted = {"index": ("path",), "search": ("query", "repo"), "initialize": ("version",)}
    names = wanted.get(method, ("question", "repo") if method in ("ask", "prefetch") else ())
    return framing.encode(request(method, {name: NOWHERE[name] for name in names}, number))


def framed(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def mutated(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """`data` with pieces replaced: at a place, so many bytes, by others."""
    for place, length, put in changes:
        at = place % (len(data) + 1)
        data = data[:at] + put + data[at + length :]
    return data


VALID = st.builds(valid, st.sampled_from(METHODS), st.integers(0, 5))
ODD = st.builds(
    lambda message, rest: framed(json.dumps({**message, **rest}).encode()),
    st.builds(
        request, st.sampled_from(METHODS), st.one_of(PARAMS, PARAMS, VALUES), st.one_of(st.integers(0, 9), VALUES)
    ),
    st.one_of(
        st.just({}),
        st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "extra"]), VALUES, max_size=2),
    ),
)
CHANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=4)
PIECES = {
    "random bytes": st.binary(max_size=200),
    "framed bytes": st.builds(framed, st.binary(max_size=200)),
    "framed values": st.builds(lambda value: framed(json.dumps(value).encode()), VALUES),
    "odd requests": ODD,
    "valid requests": VALID,
    "mutated requests": st.builds(mutated, st.one_of(VALID, ODD), CHANGES),
}
WHOLE, BROKEN = (
    ("framed bytes", "framed values", "odd requests", "valid requests"),
    ("random bytes", "mutated requests"),
)


def pieces(kinds: tuple[str, ...]) -> st.SearchStrategy[tuple[str, bytes]]:
    return st.sampled_from(kinds).flatmap(lambda kind: st.tuples(st.just(kind), PIECES[kind]))


# Behind what is broken nothing is read any more.
INPUTS = st.builds(
    lambda whole, broken: [*whole, *broken],
    st.lists(pieces(WHOLE), max_size=5),
    st.lists(pieces(BROKEN), min_size=1, max_size=2),
)
AT_ONCE = 0.02
SPLITS = st.lists(st.integers(0, 600), max_size=5)


class Fuzz:
    """Sends inputs, checks what comes back, and counts both."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def once(self, pieces: list[tuple[str, bytes]], splits: list[int]) -> None:
        data = b"".join(piece for _, piece in pieces)
        # Whatever a mutation makes of a request, it must not be this one.
        data = data.replace(b"shutdown", b"shutdowm")
        self.counts.update(["connections", *(kind for kind, _ in pieces)])
        sock = try_connect()
        assert sock is not None
        with sock:
            sock.settimeout(20.0)
            self._send(sock, data, splits)
            self._read(sock)

    @staticmethod
    def _send(sock: socket.socket, data: bytes, splits: list[int]) -> None:
        cuts = sorted({0, len(data), *(min(split, len(data)) for split in splits)})
        try:
            for start, end in pairwise(cuts):
                sock.sendall(data[start:end])
        except OSError:
            # It was closed in the middle, and what it said before can be read.
            pass

    def _read(self, sock: socket.socket) -> None:
        """All that comes, first as long as it is answered at once, then after the end of what is sent."""
        reader = framing.SocketReader(sock)
        for seconds in (AT_ONCE, 20.0):
            sock.settimeout(seconds)
            try:
                while (body := reader.read_body()) is not None:
                    self._check(framing.decode(body))
                break
            except ConnectionError:
                self.counts["closed with bytes unread"] += 1
                break
            except TimeoutError:
                assert seconds == AT_ONCE
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)
        self.counts["closed"] += 1

    def _check(self, message: Any) -> None:
        assert isinstance(message, dict)
        assert message["jsonrpc"] == "2.0"
        if message.get("method") == messages.PROGRESS:
            self.counts["progress"] += 1
        elif "result" in message:
            assert isinstance(message["result"], dict)
            self.counts["results"] += 1
        else:
            error = message["error"]
            assert error["code"] in NUMBERS, error
            assert set(error["data"]) == {"code", "message", "hint"}
            assert "\n" not in error["message"]
            self.counts[f"errors: {error['data']['code']}"] += 1


def run(examples: int, daemon: FakeDaemon, reproducible: bool) -> Counter[str]:
    fuzz = Fuzz()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=reproducible,
        suppress_health_check=list(HealthCheck),
    )
    @given(INPUTS, SPLITS)
    def once(pieces: list[tuple[str, bytes]], splits: list[int]) -> None:
        fuzz.once(pieces, splits)

    with Client.connect() as client:
        once()
        assert client.call("status", {}, timeout=20.0)["daemon"]["pid"] == daemon.process.pid
    assert "internal error" not in paths.log_file().read_text()
    print(f"{os.getpid()}:", ", ".join(f"{count:,} {what}" for what, count in sorted(fuzz.counts.items())))
    return fuzz.counts


@pytest.mark.parametrize(
    ("examples", "reproducible"),
    [(100, True), pytest.param(2_000, False, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])],
)
def test_chance(fake_daemon: FakeDaemon, examples: int, reproducible: bool) -> None:
    counts = run(examples, fake_daemon, reproducible)
    assert counts["connections"] == counts["closed"] >= examples
    # It was about something: all kinds went out, and all kinds of answers came.
    assert min(counts[kind] for kind in PIECES) > examples // 10
    for code in ("failed", "usage", "repository"):
        assert counts[f"errors: {code}"] > 0
    assert counts["results"] > 0
    assert not re.search(r"Traceback|Error: ", paths.log_file().read_text())
