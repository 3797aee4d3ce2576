"""What SQLite says when an index can't be used, as errors for people."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from kvd.errors import BusyError, StoreError

DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, UnicodeDecodeError)
"""The file's content is broken."""

MET_DAMAGE = (*DAMAGE, apsw.SQLError)
"""What reading tables may meet: a missing one, and vec0 finding its own inconsistent, come as a plain SQL error."""

NOTED = ".damaged"
"""Suffix of the empty file that has the next update make an index anew."""

_LOCKS = Path("/proc/locks")
_LITTLE = 256 << 10
"""Bytes: less is no room for what SQLite has beside a file."""


class DamageError(StoreError):
    """The index turned out to be damaged; the next update makes it anew."""


@contextmanager
def damage_noticed(path: Path, root: Path) -> Iterator[None]:
    """Turn what SQLite says of a damaged file into a `DamageError` that names the way out, a lock into `BusyError`.

    Damage is noted beside the file: to open it again, which an update does, need not show it.
    """
    try:
        yield
    except apsw.BusyError as error:
        raise locked_error(path, root) from error
    except MET_DAMAGE as error:
        with suppress(OSError):
            path.with_suffix(NOTED).touch(mode=0o600)
        raise DamageError(f"the index of {root} is damaged: {error}", hint=f"kvd index {root}") from error
    except (apsw.IOError, apsw.FullError, apsw.CantOpenError, apsw.ReadOnlyError) as error:
        raise StoreError(f"the index of {root} failed: {why(error, path)}", hint=f"kvd index {root}") from error


def why(error: apsw.Error | OSError, path: Path) -> str:
    """What went wrong with a file, in a few words."""
    if isinstance(error, (apsw.IOError, apsw.FullError, apsw.CantOpenError)) and _is_full(path.parent):
        # SQLite calls it an I/O error where it is a file beside the index that has no room.
        return "the disk is full"
    return str(getattr(error, "strerror", None) or error)


def _is_full(folder: Path) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LITTLE


class OtherIndexerError(BusyError):
    """Another program is at the index, and has been for longer than it was to be waited for."""


def locked_error(path: Path, root: Path) -> BusyError:
    """The error for the index of `root` at `path`, whose lock another program did not let go in time."""
    holders = lock_holders(path)
    if not holders:
        return BusyError(f"the index of {root} is locked by another program", hint=f"try again later: kvd index {root}")
    names = ", ".join(f"{name} (pid {pid})" for pid, name in holders)
    return BusyError(
        f"the index of {root} is locked by {names}",
        hint=f"try again when it is done, or end it: kill {' '.join(str(pid) for pid, _ in holders)}",
    )


def lock_holders(path: Path) -> list[tuple[int, str]]:
    """Process ids and names of others that have a write lock on an SQLite file or what is beside it.

    Asked of the system's table (Linux): to open the files here and close them again would give up SQLite's own locks.
    """
    try:
        lines = _LOCKS.read_text("ascii", "replace").splitlines()
    except OSError:
        return []
    inodes = {_inode(Path(f"{path}{suffix}")) for suffix in ("", "-shm", "-wal")} - {None}
    pids = set()
    for line in lines:
        # "1: POSIX  ADVISORY  WRITE 1234 fe:00:5767592 120 120"; "->" stands before those who wait.
        words = line.split()
        if len(words) == 8 and words[3] == "WRITE" and words[5] in inodes:
            pids.add(int(words[4]))
    return [(pid, _name(pid)) for pid in sorted(pids - {os.getpid()}) if pid > 0]


def _inode(file: Path) -> str | None:
    """Device and inode as in the system's table."""
    try:
        status = file.stat()
    except OSError:
        return None
    return f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "a program"
