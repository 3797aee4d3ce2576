"""Indexes that nobody will ask about again: of folders that are gone, and of those that were named."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kvd import paths
from kvd.errors import KvdError
from kvd.recall import database
from kvd.recall.faults import NOTED
from kvd.recall.index import only_writer
from kvd.service.recent import used_root

_log = logging.getLogger(__name__)

_SUFFIXES = (".db", ".db-wal", ".db-shm", ".db-journal", ".used", ".lock", NOTED)


def remove_forgotten() -> dict[str, int]:
    """`{"removed", "freed_bytes"}`: indexes that went because their folder does not exist any more.

    One that can't be read and does not say which folder it is of stays: the folder's next index run makes it anew.
    """
    folder = paths.cache_dir() / "index"
    removed = freed = 0
    for name in sorted({file.stem for file in folder.glob("*.db")} | {file.stem for file in folder.glob("*.used")}):
        with suppress(KvdError, OSError):
            size = _remove_if_forgotten(folder / f"{name}.db")
            removed, freed = removed + (size is not None), freed + (size or 0)
    if removed:
        _log.info("removed %d indexes of folders that are gone", removed)
    return {"removed": removed, "freed_bytes": freed}


def _remove_if_forgotten(file: Path) -> int | None:
    """The bytes that were given back; None if it stays."""
    root = used_root(file) or _root_within(file)
    if root is None or not _is_gone(root):
        return None
    with only_writer(file, cancelled=lambda: True):
        return _remove(file) if _is_gone(root) else None


def remove_index(root: Path, cancelled: Callable[[], bool]) -> int | None:
    """The bytes that were given back; None where there is no index of `root`. Another indexer is waited for."""
    file = paths.index_file(root)
    if not any(file.with_suffix(suffix).exists() for suffix in _SUFFIXES):
        return None
    with only_writer(file, cancelled):
        return _remove(file)


def _remove(file: Path) -> int:
    size = paths.bytes_on_disk(file)
    for suffix in _SUFFIXES:
        file.with_suffix(suffix).unlink(missing_ok=True)
    return size


def _root_within(file: Path) -> Path | None:
    """The root that a readable index names."""
    db = database.open_for_reading(file, file)
    try:
        root = database.read_meta(db).get("root")
    finally:
        db.close()
    return Path(root) if root else None


def _is_gone(root: Path) -> bool:
    """A folder that merely can't be looked at is there."""
    try:
        return not stat.S_ISDIR(os.stat(root).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
