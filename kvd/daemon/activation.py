"""Sockets that systemd hands over to the daemon that it starts (sd_listen_fds(3))."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from kvd.errors import UnavailableError

_FIRST = 3
"""SD_LISTEN_FDS_START"""

_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_HINT = "kvd service install"


def passed_sockets() -> list[int]:
    """The descriptors that are meant for this process; none where there are none, or for another one.

    The variables are taken out of the environment, so that no child takes them for its own.
    """
    pid, count, _ = (os.environ.pop(name, "") for name in _VARIABLES)
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    # One is expected: how many there are beyond a few only matters to the error.
    numbers = list(range(_FIRST, _FIRST + min(int(count), 64)))
    for number in numbers:
        with suppress(OSError):
            os.set_inheritable(number, False)
    return numbers


def listening_socket(descriptors: list[int], path: Path) -> socket.socket:
    """The one socket that was passed, which has to be a listening unix stream socket at `path`.

    Raises `UnavailableError` for anything else.
    """
    if len(descriptors) != 1:
        raise UnavailableError(f"systemd passed {len(descriptors)} sockets instead of one", hint=_HINT)
    try:
        sock = socket.socket(fileno=descriptors[0])
    except OSError as error:
        raise UnavailableError(f"what systemd passed is no socket: {error.strerror}", hint=_HINT) from error
    if fault := _fault(sock, path):
        sock.close()
        raise UnavailableError(f"the socket that systemd passed {fault}", hint=_HINT)
    sock.setblocking(False)
    return sock


def _fault(sock: socket.socket, path: Path) -> str:
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
        return "is no unix stream socket"
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "does not listen"
    if sock.getsockname() != os.fspath(path):
        return f"is {sock.getsockname() or 'without a name'}, not {path}"
    return ""
