"""Private, atomic and hashed: what the other modules do with files."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

COPY_BYTES = 1 << 20


def open_private(path: Path, *, append: bool = False) -> BinaryIO:
    """Open for writing, readable by this user only; `append` keeps what is there."""
    # Without waiting, should it be a pipe.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | (os.O_APPEND if append else os.O_TRUNC)
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """A reader finds the old content or the new one, also after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open_private(temporary) as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock file at `path`; `waiting` is called once when another process holds it.

    The lock goes with the process, so a killed holder leaves nothing behind.
    """
    with open_private(path, append=True) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def size_of(path: Path) -> int:
    """The file's size in bytes, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def hash_file(path: Path, tick: Callable[[int], None] | None = None) -> str:
    """The sha256 of a file in hex; `tick` gets the bytes done so far."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while block := file.read(COPY_BYTES):
            digest.update(block)
            done += len(block)
            if tick:
                tick(done)
    return digest.hexdigest()
