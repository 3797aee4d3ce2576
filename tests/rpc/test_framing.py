from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from kvd.rpc import framing
from kvd.rpc.streams import read_body


def read_all(data: bytes, patience: float = 5.0, end: bool = True) -> list[bytes]:
    """All bodies in a stream, read with asyncio."""

    async def run() -> list[bytes]:
        reader = asyncio.StreamReader(limit=framing.MAX_HEADER)
        reader.feed_data(data)
        if end:
            reader.feed_eof()
        bodies = []
        while (body := await read_body(reader, patience)) is not None:
            bodies.append(body)
        return bodies

    return asyncio.run(run())


def read_socket(data: bytes) -> bytes | None:
    """The first body in a stream, read from a blocking socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        return framing.SocketReader(theirs).read_body()


@pytest.mark.parametrize("value", [{"a": 1}, {"text": "é\n\u2028 \U0001f600"}, {"name": "bad \udcff byte"}])
def test_what_is_encoded_is_decoded(value: dict[str, Any]) -> None:
    frame = framing.encode(value)
    (body,) = read_all(frame)
    assert framing.decode(body) == value
    assert read_socket(frame) == body


def test_messages_follow_each_other() -> None:
    assert read_all(framing.encode({"n": 1}) + framing.encode({"n": 2})) == [b'{"n":1}', b'{"n":2}']
    assert read_all(b"") == []


def test_other_headers_and_case_are_accepted() -> None:
    data = b"content-type: x\r\nCONTENT-LENGTH:  2 \r\n\r\n{}"
    assert read_all(data) == [b"{}"]
    assert read_socket(data) == b"{}"


BROKEN = {
    "no length": b"Content-Type: x\r\n\r\n{}",
    "no number": b"Content-Length: two\r\n\r\n{}",
    "negative": b"Content-Length: -2\r\n\r\n{}",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a gigabyte": b"Content-Length: 1073741824\r\n\r\n{}",
    "more digits than a number has": b"Content-Length: " + b"9" * 40 + b"\r\n\r\n",
    "just over": b"Content-Length: %d\r\n\r\n" % (framing.MAX_MESSAGE + 1),
    "endless header": b"X" * (framing.MAX_HEADER + 10),
    "long header": b"X: " + b"y" * framing.MAX_HEADER + b"\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_broken_headers_are_refused(data: bytes) -> None:
    with pytest.raises(framing.FramingError):
        read_all(data)
    with pytest.raises(framing.FramingError):
        read_socket(data)


def test_the_largest_message_is_read() -> None:
    body = b'"' + b"x" * (framing.MAX_REQUEST - 2) + b'"'
    assert read_all(b"Content-Length: %d\r\n\r\n" % len(body) + body) == [body]


@pytest.mark.parametrize("data", [b"C", b"Content-Length: 5\r\n\r\n{}"])
def test_half_a_message_is_not_waited_for(data: bytes) -> None:
    with pytest.raises(framing.FramingError, match="half a message"):
        read_all(data, patience=0.05, end=False)
    with pytest.raises(framing.FramingError, match="ended within"):
        read_all(data)
    assert read_socket(data) is None


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[NaN]", b"[" * 100_000, b"1" * 5000])
def test_what_is_not_json_is_malformed(body: bytes) -> None:
    with pytest.raises(framing.MalformedError):
        framing.decode(body)


def send_all(sock: socket.socket, data: bytes) -> None:
    sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)


def framed(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


@given(st.lists(st.one_of(st.sampled_from(list(BROKEN.values())), st.binary(max_size=30).map(framed)), max_size=4))
@settings(max_examples=60, deadline=None, database=None, derandomize=True)
def test_both_readers_read_the_same(parts: list[bytes]) -> None:
    """What the client's reader makes of a stream, and the daemon's, but for what only one of them lets pass."""
    data = b"".join(parts)
    ours, theirs = socket.socketpair()
    bodies: list[bytes] = []
    with ours, theirs:
        sender = threading.Thread(target=send_all, args=(ours, data))
        sender.start()
        reader = framing.SocketReader(theirs)
        broken = False
        try:
            while (body := reader.read_body()) is not None:
                bodies.append(body)
        except framing.FramingError:
            broken = True
        while theirs.recv(65536):
            pass
        sender.join()
    if broken:
        with pytest.raises(framing.FramingError):
            read_all(data)
    else:
        assert read_all(data) == bodies
