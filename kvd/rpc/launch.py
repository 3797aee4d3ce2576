"""Finds the daemon's socket, and starts a daemon where none listens."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from kvd import paths
from kvd.errors import UnavailableError
from kvd.regular import check_regular
from kvd.rpc.peer import daemon_pid

if TYPE_CHECKING:
    import subprocess

START_SECONDS = 15.0
_POLL_SECONDS = 0.01
_MOST_SAID = 64 << 10
"""Bytes of the log in which the reason is looked for why a daemon did not start."""


def try_connect(timeout: float = 5.0) -> socket.socket | None:
    """A connection to the daemon, or None where nobody listens (no socket, or a stale one)."""
    path = os.fspath(paths.socket_file())
    deadline = time.monotonic() + timeout
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout)
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            return None
        except OSError as error:
            sock.close()
            # Others who are not let in yet fill the queue: with a timeout the kernel does not wait for a place in it.
            full = isinstance(error, BlockingIOError)
            if full and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                continue
            reason = "it does not answer" if full or isinstance(error, TimeoutError) else error.strerror
            raise UnavailableError(f"can't reach the daemon: {reason}", hint="kvd stop --now") from error
        return sock


def connect_to_running(timeout: float = 5.0) -> socket.socket | None:
    """`try_connect`, but None where systemd listens for a daemon that does not run: that would start it."""
    return None if daemon_pid() is None else try_connect(timeout)


def connect_or_start(seconds: float = START_SECONDS) -> socket.socket:
    """A connection to the daemon, which is started first where none listens.

    Raises `UnavailableError` when none listens after `seconds`, or when the new one died.
    """
    return try_connect() or _start(seconds)


def _start(seconds: float) -> socket.socket:
    for folder in (paths.cache_dir, paths.data_dir):
        # What the daemon can't make it could only log: here it becomes the command's error.
        folder()
    deadline = time.monotonic() + seconds
    process: subprocess.Popen[bytes] | None = None
    with closing(_Log(paths.log_file())) as log:
        while (sock := try_connect()) is None:
            if process is None:
                process = _spawn(log)
            status = process.poll()
            if status:
                raise log.why_not_started(status)
            if status == 0:
                # Another daemon held the lock: it is about to listen, or about to end and leave the place.
                process = None
            if time.monotonic() > deadline:
                raise UnavailableError(f"no daemon listens after {seconds:.0f} s", hint="kvd logs")
            time.sleep(_POLL_SECONDS)
    if process is not None:
        # It lives on without this process: nobody will ask for its status, and that is meant.
        process.returncode = 0
    return sock


class _Log:
    """The daemon's log, open for the output of daemons that are being started."""

    def __init__(self, path: Path) -> None:
        """Raises `UnavailableError` where it can't be written."""
        try:
            check_regular(path, device=True)
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            hint = f"remove it, or check the disk: {path}"
            raise UnavailableError(f"can't write {path}: {error.strerror}", hint=hint) from error
        self._begin = os.fstat(self.descriptor).st_size

    def why_not_started(self, status: int) -> UnavailableError:
        """The error for a daemon that ended with `status`, in its own words where it had some."""
        try:
            said = os.pread(self.descriptor, _MOST_SAID, self._begin).decode("utf-8", "replace")
        except OSError:
            # A terminal, say.
            said = ""
        found = re.search(r"^kvd: (.+)\n(?:hint: (.+))?", said, re.MULTILINE)
        if found is None:
            return UnavailableError(f"the daemon did not start (exit status {status})", hint="kvd logs")
        return UnavailableError(f"the daemon did not start: {found[1]}", hint=found[2] or "kvd logs")

    def close(self) -> None:
        os.close(self.descriptor)


def _spawn(log: _Log) -> subprocess.Popen[bytes]:
    import subprocess

    try:
        return subprocess.Popen(
            # -P: the working folder is no place to import from.
            [sys.executable, "-P", "-m", "kvd.daemon"],
            cwd="/",
            env=daemon_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log.descriptor,
            stderr=log.descriptor,
            start_new_session=True,
        )
    except OSError as error:
        raise UnavailableError(f"can't start the daemon: {error.strerror}") from error


def daemon_environment() -> dict[str, str]:
    """This process's environment without git's variables: inside a hook they would name one repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
