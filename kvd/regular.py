"""kvd's own files are regular ones: what else lies at their paths is told of, not opened.

Opening a named pipe waits for its other end, and a device may have no end.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

MOST_BYTES = 1_000_000
"""Of a file that is read whole."""

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISLNK, "a link"),
)


def check_regular(path: Path, *, device: bool = False) -> None:
    """Raises `OSError` where something other than a regular file is at `path`, links followed; nothing is no fault.

    `device`: a character device, such as /dev/null, will do too.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not (device and stat.S_ISCHR(mode)):
        _check_mode(path, mode)


def check_database(path: Path) -> None:
    """`check_regular` for an SQLite file and those that SQLite looks for beside it."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        check_regular(Path(f"{path}{suffix}"))


def _check_mode(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", os.fspath(path))


def read_small(path: Path, most: int = MOST_BYTES, *, follow: bool = True) -> bytes:
    """The content of a file. Raises `OSError`, also for what is no regular file or has more than `most` bytes.

    Without `follow` a link in the file's place is no regular file.
    """
    _check_mode(path, path.stat(follow_symlinks=follow).st_mode)
    # What is there may have changed since.
    more = os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | more)) as file:
        _check_mode(path, os.fstat(file.fileno()).st_mode)
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", os.fspath(path))
    return data


def read_json(path: Path) -> Any:
    """The value in a small JSON file. Raises `OSError` as `read_small` does, `ValueError` for what is no JSON."""
    data = read_small(path)
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
