"""Who is at the other end of a unix socket, from the kernel."""

from __future__ import annotations

import socket
import struct
import sys

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
    """The process id of the peer: for a client, of whoever listens. Raises `OSError`."""
    if sys.platform == "darwin":
        return int(struct.unpack("i", sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, 4))[0])
    return _ucred(sock)[0]


def _ucred(sock: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid
