"""Who may connect, and who has to go when there is no more room."""

from __future__ import annotations

import os
import resource
import socket
from collections import Counter
from collections.abc import Collection
from contextlib import suppress

from kvd.daemon.connection import Connection
from kvd.rpc.peer import peer_pid, peer_uid

MAX_CLIENTS = 128
_FEWEST_CLIENTS = 8
_OTHER_FILES = 256
"""Databases, children's pipes, watches, and what is read."""


def is_own(sock: socket.socket) -> bool:
    """Whether the other end is a process of this user."""
    try:
        return peer_uid(sock) == os.getuid()
    except OSError:
        return False


def pid_of(sock: socket.socket) -> int:
    """The process at the other end, 0 where the system does not say."""
    try:
        return peer_pid(sock)
    except OSError:
        return 0


def most_clients() -> int:
    """As many as this process may have files open, after a try to be allowed enough of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CLIENTS + _OTHER_FILES
    if 0 <= soft < wanted:
        soft = wanted if hard < 0 else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CLIENTS if soft < 0 else max(_FEWEST_CLIENTS, min(MAX_CLIENTS, soft - _OTHER_FILES))


def whom_to_close(clients: Collection[Connection]) -> Connection | None:
    """Of those without a request in flight, and of the process that has the most clients, the one that has been silent
    for longest."""
    idle = [client for client in clients if client.idle]
    crowd = Counter(client.pid for client in clients)
    return min(idle, key=lambda client: (-crowd[client.pid], client.used_at), default=None)
