"""One daemon per user: the lock first, then the socket."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvd import paths
from kvd.daemon.activation import listening_socket
from kvd.errors import UnavailableError

_BACKLOG = 128

_BRIEF_SECONDS = 0.1
"""Whoever looks whether a daemon runs holds the lock for a moment."""

_PASSED_SECONDS = 60.0
_POLL_SECONDS = 0.02


class Place:
    """The lock and the listening socket of the one daemon. The kernel gives the lock back however it ends."""

    def __init__(self, lock: int, sock: socket.socket, path: Path, passed: bool) -> None:
        self._lock = lock
        self.socket = sock
        self.path = path
        self._passed = passed
        self._identity = _identity(path)

    @classmethod
    def take(cls, passed: list[int] | None = None) -> Place | None:
        """None when another daemon has it. A socket left by a dead daemon is replaced.

        With `passed` descriptors it listens there, and waits for a daemon that is about to end: systemd has replaced
        its socket, so that nobody would be served. Raises `UnavailableError` where lock or socket can't be had.
        """
        path = paths.socket_file()
        with _made(paths.lock_file()) as file:
            lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _locked(lock, _PASSED_SECONDS if passed else _BRIEF_SECONDS):
                if passed:
                    raise UnavailableError("another daemon runs, and does not end", hint="kvd stop --now")
                os.close(lock)
                return None
            with _made(paths.lock_file()):
                _write_pid(lock)
            if passed:
                sock = listening_socket(passed, path)
            else:
                with _made(path):
                    sock = _listen(path)
            with _made(path):
                return cls(lock, sock, path, bool(passed))
        except BaseException:
            os.close(lock)
            raise

    def is_ours(self) -> bool:
        """False when somebody removed or replaced the socket: then no client can come any more."""
        try:
            return _identity(self.path) == self._identity
        except OSError:
            return False

    def leave(self) -> None:
        """Remove the socket if it was made here, then let the lock go."""
        if not self._passed and self.is_ours():
            with suppress(OSError):
                self.path.unlink()
        os.close(self._lock)


def _identity(path: Path) -> tuple[int, int]:
    """An inode's number may be given to the next file at once; its time of modification differs then."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _locked(lock: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)


def _write_pid(lock: int) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


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
