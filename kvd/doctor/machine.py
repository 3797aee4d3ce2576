"""Python, memory, disk, folders: what the system gives kvd to work with."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from kvd import paths
from kvd.config import Settings
from kvd.doctor.finding import Finding, fault, note, ok
from kvd.errors import KvdError
from kvd.models.machine import Machine

_OLDEST = (3, 11)
_LEAST_MEMORY = 1_000_000_000
"""Less than the smallest model with its context takes."""
_LEAST_DISK = 500_000_000
"""An index, the log, and some KV."""


def python() -> Finding:
    text = f"{platform.python_version()} in {sys.prefix}"
    if sys.version_info < _OLDEST or sys.maxsize < 1 << 32:
        return fault("python", text, "install kvd with a 64-bit Python of 3.11 or newer")
    return ok("python", text)


def memory(machine: Machine) -> Finding:
    if machine.available < _LEAST_MEMORY:
        return fault("memory", machine.describe(), "end other programs, or raise the container's limit")
    return ok("memory", machine.describe())


def disk(settings: Settings) -> Finding:
    """Whether the store can grow to its cap where it is."""
    try:
        folder = paths.cache_dir()
        free = shutil.disk_usage(folder).free
        wanted = settings.store_bytes - paths.bytes_on_disk(paths.store_file())
    except (KvdError, OSError) as error:
        return fault(
            "disk", str(error), getattr(error, "hint", "") or "set XDG_CACHE_HOME to a folder that you can read"
        )
    text = f"{free / 1e9:.1f} GB free in {folder}"
    if free < _LEAST_DISK:
        return fault("disk", text, "make room there, or set XDG_CACHE_HOME to another disk")
    if free < wanted:
        return note(
            "disk",
            f"{text}; the store may grow by {wanted / 1e9:.1f} GB",
            f"set store_bytes to less than {settings.store_bytes} in {paths.config_file()}",
        )
    return ok("disk", text)


def folders() -> Finding:
    """Whether everything can be written that kvd has to write."""
    makers: tuple[Callable[[], Path], ...] = (
        paths.cache_dir,
        paths.data_dir,
        lambda: paths.log_file().parent,
        paths.runtime_dir,
    )
    for make in makers:
        try:
            folder = make()
            with tempfile.TemporaryFile(dir=folder):
                pass
        except KvdError as error:
            return fault("folders", error.message, error.hint)
        except OSError as error:
            return fault("folders", f"can't write into {folder}: {error.strerror}", f"chmod u+rwx '{folder}'")
    return ok("folders", f"cache, data, state and runtime folders are {_owner()}'s to write")


def _owner() -> str:
    return os.environ.get("USER") or f"user {os.getuid()}"
