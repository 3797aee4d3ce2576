"""Keeping a repository's index true: finds what changed, cuts it into chunks, writes them."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from kvd import paths
from kvd.config import Settings
from kvd.errors import CancelledError, KvdError, StoreError
from kvd.recall import database, faults
from kvd.recall.embed import Embedder, default_embedder, label
from kvd.recall.faults import OtherIndexerError
from kvd.recall.index import IndexWriter, counts, only_writer
from kvd.recall.vector_cache import VectorCache
from kvd.recall.vectors import fill_vectors
from kvd.service.update import Update
from kvd.source.chunker import CHUNKER_VERSION
from kvd.source.cutter import Cutter, WarmCutters
from kvd.source.ignore import matcher
from kvd.source.languages import has_grammar
from kvd.source.tree import checked_folder, list_files
from kvd.sqlite import close
from kvd.types import IndexSummary, Progress, ProgressCallback

_log = logging.getLogger(__name__)

FIRST_INDEX = "first-index"
"""The stage that tells that a repository has no complete index yet; its message is the root."""

REBUILD = "rebuild"
"""The stage that tells that the index had to be made anew; its message says why."""

UNKNOWN = "unknown"
"""A language that has no name."""


@dataclass(frozen=True, slots=True)
class Means:
    """What an index run works with.

    `cutters`: whose children outlast it; None for children of its own. `prepare`: there are changed files, so that a
    parser is started while the others are looked at.

    `embedder`: None for the default one. `vector_seconds`: for how long vectors are computed at the end of a run; what
    is then left is for `fill_index`. With 0, vectors come from the cache alone.

    `patience`: for how many seconds another program that indexes the same repository is waited for.
    """

    embedder: Embedder | None = None
    vector_seconds: float = math.inf
    cutters: WarmCutters | None = None
    prepare: bool = False
    patience: float = math.inf


def update_index(
    root: Path,
    settings: Settings,
    progress: ProgressCallback,
    cancelled: Callable[[], bool],
    means: Means | None = None,
) -> IndexSummary:
    """Bring the index of `root` up to date and say what was done.

    An unchanged tree costs a listing and a comparison. What is done is kept file by file: after a kill or a
    `CancelledError` the next run goes on from there. Another indexer of the same repository is waited for.
    Raises `RepositoryError`, `StoreError`, `CancelledError`, `OtherIndexerError` when the patience for that is at its
    end, and `BusyError` where another program locks the index.
    """
    run = _Run(checked_folder(root), settings, progress, cancelled, means or Means())
    told = False

    def waiting(seconds: float) -> None:
        nonlocal told
        if not told:
            told = True
            progress(Progress("wait", message="for another program that indexes this repository"))
        if seconds > run.means.patience:
            error = faults.locked_error(run.file.with_suffix(".lock"), run.root)
            raise OtherIndexerError(error.message, error.hint)

    with only_writer(run.file, cancelled, waiting):
        try:
            return run.run()
        except apsw.BusyError as error:
            raise faults.locked_error(run.file, run.root) from error
        except faults.MET_DAMAGE as error:
            # It was deeper than opening the file could show.
            database.remove(run.file)
            run.rebuilt = f"damaged file: {error}"
        except apsw.Error as error:
            fault = faults.why(error, run.file)
            raise StoreError(f"can't write the index {run.file}: {fault}", hint="check the disk's space") from error
    with only_writer(run.file, cancelled, waiting), faults.damage_noticed(run.file, run.root):
        return run.run()


def fill_index(root: Path, embedder: Embedder, stop: Callable[[], bool]) -> int:
    """Go on with the vectors of `root` until `stop()`; returns how many chunks still have none.

    Raises `StoreError` where there is no usable index, and what the embedder raises.
    """
    root = checked_folder(root)
    file = paths.index_file(root)
    db = database.open_as_it_is(file, root)
    try:
        with faults.damage_noticed(file, root), VectorCache(paths.vectors_file()) as cache:
            # Of another embedder: the next index run begins anew with this one.
            if database.read_meta(db).get("embedder") != label(embedder):
                return 0
            with suppress(CancelledError):
                # It gives way to an index run, and is not waited for by one while it computes.
                fill_vectors(db, embedder, cache, stop, writing=lambda: only_writer(file, stop))
            return counts(db).pending
    finally:
        close(db)


@dataclass(slots=True)
class _Run:
    root: Path
    settings: Settings
    progress: ProgressCallback
    cancelled: Callable[[], bool]
    means: Means
    rebuilt: str = ""
    started: float = field(default_factory=time.monotonic)

    @property
    def file(self) -> Path:
        return paths.index_file(self.root)

    def run(self) -> IndexSummary:
        embedder = self.means.embedder or default_embedder()
        # Files that were judged by another list of secrets have to be judged again.
        fingerprint = f"{CHUNKER_VERSION} {self.settings.not_secret}".strip()
        db, reason = database.open_for_writing(self.file, self.root, fingerprint)
        try:
            writer = IndexWriter(db, embedder)
            reason = self.rebuilt or reason
            if reason:
                _log.warning("index %s made anew: %s", self.file.name, reason)
                self.progress(Progress(REBUILD, message=reason))
            elif not _complete(db):
                self.progress(Progress(FIRST_INDEX, message=str(self.root)))
            if swapped := writer.use_embedder():
                _log.info("vectors of index %s made anew: %s", self.file.name, swapped)
            self.progress(Progress("scan"))
            with self.means.cutters.lend() if self.means.cutters else Cutter() as cutter:
                if self.means.prepare:
                    cutter.prepare()
                update = Update(
                    self.root,
                    self.settings,
                    writer,
                    cutter,
                    self.progress,
                    self.cancelled,
                    matcher(self.settings.not_secret),
                )
                update.run(list_files(self.root, self.settings.folder_files))
            writer.finish()
            self._fill(db, embedder)
            held = counts(db)
        finally:
            close(db)
        return IndexSummary(
            repo=str(self.root),
            files=held.files,
            chunks=held.chunks,
            added=update.added,
            changed=update.changed,
            deleted=update.deleted,
            unchanged=update.unchanged,
            skipped=dict(sorted(update.skipped.items())),
            embedder=label(embedder),
            seconds=round(time.monotonic() - self.started, 3),
            by_lines=sum(held.by_lines.values()),
            by_lines_reasons=_reasons(held.by_lines),
            languages={language or UNKNOWN: files for language, files in held.languages.items()},
            rebuilt=reason,
            pending_vectors=held.pending,
        )

    def _fill(self, db: apsw.Connection, embedder: Embedder) -> None:
        deadline = time.monotonic() + self.means.vector_seconds
        compute = self.means.vector_seconds > 0

        def stop() -> bool:
            return self.cancelled() or (compute and time.monotonic() > deadline)

        with VectorCache(paths.vectors_file()) as cache:
            fill_vectors(db, embedder, cache, stop, compute=compute)


def _reasons(by_lines: dict[str, int]) -> dict[str, int]:
    reasons: Counter[str] = Counter()
    for language, files in by_lines.items():
        reasons["parser failed" if has_grammar(language) else f"no grammar: {language or UNKNOWN}"] += files
    return dict(sorted(reasons.items()))


def _complete(db: apsw.Connection) -> bool:
    return database.read_meta(db).get("complete") == "1"


def index_stats(root: Path) -> dict[str, Any]:
    """`files`, `chunks`, `bytes` of the file on disk, `embedder`, and chunks that wait for a vector.

    Raises `StoreError` without an index.
    """
    root = checked_folder(root)
    return _stats(paths.index_file(root), root)


def is_complete(root: Path) -> bool:
    """Whether there is an index of `root` that can be searched and was completed once."""
    try:
        return bool(index_stats(root)["complete"])
    except StoreError:
        return False


def _stats(file: Path, root: Path) -> dict[str, Any]:
    db = database.open_for_reading(file, root)
    try:
        with faults.damage_noticed(file, root):
            held = counts(db)
            meta = database.read_meta(db)
    finally:
        db.close()
    return {
        "repo": meta["root"],
        "files": held.files,
        "chunks": held.chunks,
        "bytes": file.stat().st_size,
        "embedder": meta["embedder"],
        "pending_vectors": held.pending,
        "complete": meta.get("complete") == "1",
    }


def known_indexes() -> list[dict[str, Any]]:
    """`index_stats` of every usable index of this user, by repository."""
    found = []
    for file in sorted((paths.cache_dir() / "index").glob("*.db")):
        try:
            found.append(_stats(file, file))
        except (KvdError, OSError):
            continue
    return sorted(found, key=lambda item: str(item["repo"]))
