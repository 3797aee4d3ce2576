"""The key that clients have to send: made at first use, in a file of the user's own."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from kvd import paths
from kvd.errors import KvdError
from kvd.regular import read_small

_LEAST_CHARACTERS = 20


def read_token() -> str:
    """The key. Raises `KvdError` where its file can't be used or others can read it."""
    file = paths.token_file()
    try:
        if not file.exists():
            _make(file)
        if file.stat().st_mode & 0o077:
            raise KvdError(f"others can read the key in {file}", hint=f"rm {file}")
        token = read_small(file, 1_000).decode("ascii", "replace").strip()
    except OSError as error:
        raise KvdError(f"can't use the key in {file}: {error.strerror}", hint=f"rm {file}") from error
    if len(token) < _LEAST_CHARACTERS or not token.isprintable():
        raise KvdError(f"there is no key in {file}", hint=f"rm {file}")
    return token


def _make(file: Path) -> None:
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(secrets.token_urlsafe(32) + "\n")
    try:
        # Whole or not at all; where another process was first, its key counts.
        with suppress(FileExistsError):
            os.link(fresh, file)
    finally:
        fresh.unlink()
