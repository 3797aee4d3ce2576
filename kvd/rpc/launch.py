"""Finds the daemon's socket, and starts a daemon where none listens."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvd import paths
from kvd.errors import UnavailableError

if TYPE_CHECKING:
    import subprocess

START_SECONDS = 15.0
_POLL_SECONDS = 0.01


def try_connect(timeout: float = 5.0) -> socket.socket | None:
    """A connection to the daemon, or None where nobody listens (no socket, or a stale one)."""
    path = os.fspath(paths.socket_file())
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except OSError as error:
        sock.close()
        reason = "it does not answer" if isinstance(error, TimeoutError | BlockingIOError) else error.strerror
        raise UnavailableError(f"can't reach the daemon: {reason}", hint="kvd stop --now") from error
    return sock


def connect_or_start(seconds: float = START_SECONDS) -> socket.socket:
    """A connection to the daemon, which is started first where none listens.

    Raises `UnavailableError` when none listens after `seconds`, or when the new one died.
    """
    deadline = time.monotonic() + seconds
    process: subprocess.Popen[bytes] | None = None
    while (sock := try_connect()) is None:
        if process is None:
            process = _spawn()
        status = process.poll()
        if status:
            raise UnavailableError(f"the daemon did not start (exit status {status})", hint="kvd logs")
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


def _spawn() -> subprocess.Popen[bytes]:
    import subprocess

    for folder in (paths.cache_dir, paths.data_dir):
        # What the daemon can't make it could only log: here it becomes the command's error.
        folder()
    log = os.open(_log_file(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            # -P: the working folder is no place to import from.
            [sys.executable, "-P", "-m", "kvd.daemon"],
            cwd="/",
            env=daemon_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    except OSError as error:
        raise UnavailableError(f"can't start the daemon: {error.strerror}") from error
    finally:
        os.close(log)


def _log_file() -> Path:
    file = paths.log_file()
    with suppress(OSError):
        file.touch(mode=0o600)
    if not os.access(file, os.W_OK):
        raise UnavailableError(f"can't write {file}", hint=f"check the folder {file.parent} and its disk")
    return file


def daemon_environment() -> dict[str, str]:
    """This process's environment without git's variables: inside a hook they would name one repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
