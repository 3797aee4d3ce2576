"""The folders that a benchmark writes to, checked before anything takes long."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvd.errors import BusyError, UsageError
from kvd.models.files import locked


def writable(folder: Path, option: str, mode: int = 0o777) -> None:
    """Make `folder` if there is none. Raises `UsageError`, which names `option`, where no file can be made in it."""
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"can't write to the folder {folder}: {error.strerror}", hint=f"give {option} a folder that you can write"
        ) from error


@contextmanager
def living_in(folder: Path) -> Iterator[None]:
    """Let this process and its daemon keep everything but models in `folder`, and no other benchmark meanwhile.

    Raises `UsageError` where it can't be written, `BusyError` while another benchmark has it.
    """

    def refuse() -> None:
        raise BusyError(f"{folder} is in use by another kvd bench", hint="wait for it, or give --work another folder")

    writable(folder, "--work")
    with locked(folder / "lock", waiting=refuse):
        for kind in ("CACHE", "CONFIG", "STATE"):
            writable(folder / kind.lower(), "--work")
            os.environ[f"XDG_{kind}_HOME"] = str(folder / kind.lower())
        writable(folder / "run", "--work", mode=0o700)
        os.environ["XDG_RUNTIME_DIR"] = str(folder / "run")
        yield
