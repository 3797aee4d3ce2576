"""The end of a log file, and what is appended to it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from kvd.errors import KvdError
from kvd.regular import check_regular

from .text import clean_line

_POLL_SECONDS = 0.25
_BLOCK = 64 << 10


def last_lines(file: Path, count: int) -> list[str]:
    """The last `count` lines, read from the end; none where there is no file. Raises `KvdError` for what is none."""
    try:
        check_regular(file, device=True)
        with file.open("rb") as stream:
            position = stream.seek(0, os.SEEK_END)
            data = b""
            while position > 0 and data.count(b"\n") <= count:
                step = min(_BLOCK, position)
                position -= step
                stream.seek(position)
                data = stream.read(step) + data
    except FileNotFoundError:
        return []
    except OSError as error:
        raise KvdError(f"can't read {file}: {error.strerror}", hint=f"check {file}") from error
    lines = data.decode("utf-8", "replace").splitlines()
    return [clean_line(line) for line in lines[len(lines) - min(count, len(lines)) :]]


def follow_file(file: Path) -> Iterator[str]:
    """Lines as they are appended from now on, also after the file was replaced by a new one; never ends."""
    position, inode, rest = (*_size_and_inode(file), b"")
    while True:
        size, current = _size_and_inode(file)
        if current != inode or size < position:
            position, inode, rest = 0, current, b""
        if size > position:
            with file.open("rb") as stream:
                stream.seek(position)
                data = rest + stream.read()
                position = stream.tell()
            *whole, rest = data.split(b"\n")
            for line in whole:
                yield clean_line(line.decode("utf-8", "replace"))
        time.sleep(_POLL_SECONDS)


def _size_and_inode(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_ino
