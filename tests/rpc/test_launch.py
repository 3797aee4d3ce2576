"""Reaching a daemon that has not the time to let everybody in at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kvd import paths
from kvd.errors import UnavailableError
from kvd.rpc.launch import try_connect


@pytest.fixture
def full() -> Iterator[socket.socket]:
    """A listening socket in the daemon's place whose queue is full."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listening.bind(str(paths.socket_file()))
        listening.listen(0)
        while True:
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            waiting.setblocking(False)
            try:
                waiting.connect(str(paths.socket_file()))
            except BlockingIOError:
                break
        yield listening


def test_a_full_queue_is_waited_for(full: socket.socket) -> None:
    reached: list[socket.socket | None] = []
    client = threading.Thread(target=lambda: reached.append(try_connect(30.0)))
    client.start()
    while client.is_alive():
        full.settimeout(1.0)
        full.accept()[0].close()
        client.join(0.1)
    (sock,) = reached
    assert sock is not None
    sock.close()


def test_a_queue_that_stays_full_is_an_error(full: socket.socket) -> None:
    with pytest.raises(UnavailableError, match="does not answer"):
        try_connect(0.1)


def test_nobody_listens() -> None:
    assert try_connect(0.1) is None
