"""Who is at the other end of the daemon's socket, from the kernel."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

from kvd import paths

_LOCAL_PEERCRED = 1
_LOCAL_PEERPID = 2
_SOL_LOCAL = 0


def peer_uid(sock: socket.socket) -> int:
    """The user id of the peer's process. Raises `OSError` when the kernel won't say."""
    if sys.platform == "darwin":
        # struct xucred: u32 version, uid_t uid, ...
        version, uid = struct.unpack_from("II", sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76))
        if version != 0:
            raise OSError("unknown form of peer credentials")
        return int(uid)
    return _ucred(sock)[1]


def peer_pid(sock: socket.socket) -> int:
    """The process id of the client at the other end. Raises `OSError`."""
    if sys.platform == "darwin":
        return int(struct.unpack("i", sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, 4))[0])
    return _ucred(sock)[0]


def daemon_pid() -> int | None:
    """The process id of the daemon, which holds its lock; None where none runs.

    The socket does not tell: who listens there may be systemd, in place of a daemon that it would start.
    """
    try:
        lock = os.open(paths.lock_file(), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        # Nothing is in it in the moment between taking and writing.
        text = os.pread(lock, 32, 0).strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(lock)
    return None


def _ucred(sock: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid
