"""Messages as bytes: `Content-Length: N`, an empty line, N bytes of JSON in UTF-8.

The limits hold before anything is allocated: a header that announces too much is refused unread. After a
`FramingError` the position in the stream is lost, so the connection has to be closed.
"""

from __future__ import annotations

import json
import re
import socket
from typing import Any, NoReturn

MAX_HEADER = 4 << 10
MAX_REQUEST = 1 << 20
"""Of a message to the daemon: what any of them needs is a few hundred kB."""
MAX_MESSAGE = 16 << 20

END = b"\r\n\r\n"
_LENGTH = re.compile(rb"(?:^|\r\n)content-length[ \t]*:[ \t]*(\d{1,12})[ \t]*(?=\r\n)", re.IGNORECASE)


class FramingError(Exception):
    """What arrived is not a message, or is larger than the limits."""


class MalformedError(Exception):
    """A message arrived whole, but its body is not JSON."""


def encode(message: dict[str, Any]) -> bytes:
    """A message as it goes over the wire. ASCII JSON, so that undecodable file names survive as escapes."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


def content_length(header: bytes, most: int = MAX_MESSAGE) -> int:
    """The body's length, at most `most`, from a header that ends in an empty line."""
    found = _LENGTH.findall(header)
    if len(found) != 1:
        raise FramingError("the header has no single Content-Length")
    length = int(found[0])
    if length > most:
        raise FramingError(f"a message of {length} bytes is over the limit of {most}")
    return length


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def decode(body: bytes) -> Any:
    """The JSON value of a body. Raises `MalformedError`, also for NaN and for absurd nesting."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedError("the message is not JSON") from error


class SocketReader:
    """Reads messages from a blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()

    def _more(self) -> bool:
        data = self._socket.recv(65536)
        self._buffer += data
        return bool(data)

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def read_body(self) -> bytes | None:
        """The next body; None when the peer closed, also within a message."""
        while (end := self._buffer.find(END)) < 0:
            if len(self._buffer) > MAX_HEADER:
                raise FramingError(f"a header of more than {MAX_HEADER} bytes")
            if not self._more():
                return None
        if end > MAX_HEADER:
            raise FramingError(f"a header of more than {MAX_HEADER} bytes")
        length = content_length(self._take(end + len(END)))
        while len(self._buffer) < length:
            if not self._more():
                return None
        return self._take(length)
