"""Changes the user's `config.toml`, keeping its comments, order and mode."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit import TOMLDocument

from kvd import paths
from kvd.config import known, parse_toml
from kvd.errors import StoreError, UsageError
from kvd.models.files import write_atomically
from kvd.regular import read_small


def set_value(name: str, value: Any) -> None:
    """Write a setting of the right type. Raises `UsageError` for a file that is no TOML, `StoreError` if it can't be
    written."""
    _change(lambda document: document.__setitem__(known(name), value))


def unset(name: str) -> bool:
    """Take a key out, also one that is no setting; false where it is not there. Raises as `set_value`."""
    return bool(_change(lambda document: document.pop(name, None) is not None))


def _change(change: Callable[[TOMLDocument], Any]) -> Any:
    # Where it is a link, what it leads to is written.
    file = Path(os.path.realpath(paths.config_file()))
    with _faults_said(file):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The folder stands for the lock: a file of its own would lie among the user's.
        folder = os.open(file.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            return _rewrite(file, change)
        finally:
            os.close(folder)


def _rewrite(file: Path, change: Callable[[TOMLDocument], Any]) -> Any:
    before, mode = "", 0o600
    if file.exists():
        before, mode = read_small(file).decode("utf-8"), stat.S_IMODE(file.stat().st_mode)
    # Its errors have the line, and it reads the same TOML as `load_settings`.
    parse_toml(file, before)
    document = tomlkit.parse(before)
    result = change(document)
    after = tomlkit.dumps(document)
    if after != before:
        write_atomically(file, after.encode("utf-8"), mode)
    return result


@contextmanager
def _faults_said(file: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not UTF-8", hint=f"edit {file}") from error
    except OSError as error:
        raise StoreError(f"can't write {file}: {error.strerror}", hint=f"check {file.parent}") from error
