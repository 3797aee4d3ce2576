"""One daemon per user: the lock first, then the socket."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvd import paths
from kvd.errors import UnavailableError

_BACKLOG = 128


class Place:
    """The lock and the listening socket of the one daemon. The kernel gives the lock back however it ends."""

    def __init__(self, lock: int, sock: socket.socket, path: Path) -> None:
        self._lock = lock
        self.socket = sock
        self.path = path
        self._inode = path.stat().st_ino

    @classmethod
    def take(cls) -> Place | None:
        """None when another daemon has it. A socket left by a dead daemon is replaced.

        Raises `UnavailableError` where lock or socket can't be made.
        """
        path = paths.socket_file()
        with _made(path.with_name("daemon.lock")) as file:
            lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with _made(path):
                return cls(lock, _listen(path), path)
        except BlockingIOError:
            os.close(lock)
            return None
        except BaseException:
            os.close(lock)
            raise

    def is_ours(self) -> bool:
        """False when somebody removed or replaced the socket: then no client can come any more."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def leave(self) -> None:
        """Remove the socket, then let the lock go."""
        if self.is_ours():
            with suppress(OSError):
                self.path.unlink()
        os.close(self._lock)


@contextmanager
def _made(path: Path) -> Iterator[Path]:
    try:
        yield path
    except OSError as error:
        raise UnavailableError(f"can't make {path}: {error.strerror or error}", hint=f"remove {path}") from error


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mode has to be right from the first moment, which chmod after bind would be too late for.
    before = os.umask(0o177)
    try:
        sock.bind(os.fspath(path))
    finally:
        os.umask(before)
    sock.listen(_BACKLOG)
    sock.setblocking(False)
    return sock
