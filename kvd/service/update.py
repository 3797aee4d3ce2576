"""One run over a repository's files: which of them changed, and their new content to the index."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvd.config import Settings
from kvd.errors import CancelledError
from kvd.recall.index import IndexWriter, KnownFile, NewFile
from kvd.source import filters
from kvd.source.content import Content
from kvd.source.cutter import Cutter, Item
from kvd.source.tree import FileEntry, Listing, read_file
from kvd.types import Progress, ProgressCallback

_RACY_NS = 2_000_000_000
"""A file that was changed so shortly before it was read may have changed again within the same timestamp, and a time
that was still to come hides when it is changed next."""

_BATCH_FILES = 32
_BATCH_BYTES = 2_000_000
_HASH_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Reading:
    """A file between being read and being written: what the index held of it, when and what was read."""

    entry: FileEntry
    before: KnownFile | None
    seen_ns: int
    digest: bytes


@dataclass(slots=True)
class Update:
    """One run over the listing; counts indexed files, not skipped ones, as added, changed and so on.

    Raises `CancelledError`.
    """

    root: Path
    settings: Settings
    writer: IndexWriter
    cutter: Cutter
    progress: ProgressCallback
    cancelled: Callable[[], bool]
    is_trusted: Callable[[str], bool]
    added: int = 0
    changed: int = 0
    deleted: int = 0
    unchanged: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    _touched: list[tuple[int, int, int, int]] = field(default_factory=list)
    _batch: list[NewFile] = field(default_factory=list)
    _batch_bytes: int = 0

    def run(self, listing: Listing) -> None:
        self.skipped.update(listing.skipped)
        known = self.writer.known_files()
        work = list(self._to_read(listing, known))
        self._delete(known)
        for item, content in self.cutter.cut(self._changed(work)):
            self._put(item.key, content)
        self._flush()
        if work:
            self.progress(Progress("index", len(work), len(work)))

    def _to_read(self, listing: Listing, known: dict[str, KnownFile]) -> Iterator[tuple[FileEntry, KnownFile | None]]:
        """What has to be read; takes out of `known` what is to stay."""
        is_generated = filters.generated_by_attribute(self.root, listing.files)
        for entry in listing.files:
            reason = filters.path_reason(entry, self.settings.max_file_bytes, self.is_trusted(entry.path))
            if not reason and is_generated(entry.path):
                reason = filters.GENERATED
            if reason:
                self.skipped[reason] += 1
                continue
            before = known.pop(entry.path, None)
            if before is None or not _same(entry, before):
                yield entry, before
            elif before.skipped:
                self.skipped[before.skipped] += 1
            else:
                self.unchanged += 1

    def _delete(self, gone: dict[str, KnownFile]) -> None:
        if gone:
            self.writer.delete(list(gone))
            self.deleted = sum(not file.skipped for file in gone.values())

    def _changed(self, work: list[tuple[FileEntry, KnownFile | None]]) -> Iterator[Item[_Reading]]:
        """Read what may have changed; gives what did."""
        for number, (entry, before) in enumerate(work):
            if self.cancelled():
                self._flush()
                raise CancelledError("indexing was cancelled", hint="run the same command to go on")
            self.progress(Progress("index", number, len(work), entry.path))
            seen = time.time_ns()
            data = read_file(self.root, entry.path, self.settings.max_file_bytes)
            if data is None:
                self._unreadable(entry, before)
                continue
            digest = hashlib.blake2b(data, digest_size=_HASH_BYTES).digest()
            if before and before.hash == digest:
                self._touched.append((entry.size, entry.mtime_ns, seen, before.id))
                self._count(before, before.skipped, same=True)
            else:
                yield Item(_Reading(entry, before, seen, digest), entry.path, data, self.is_trusted(entry.path))

    def _put(self, reading: _Reading, content: Content) -> None:
        self._count(reading.before, content.skipped, same=False)
        self._batch.append(
            NewFile(
                path=reading.entry.path,
                size=reading.entry.size,
                mtime_ns=reading.entry.mtime_ns,
                seen_ns=reading.seen_ns,
                hash=reading.digest,
                language=content.language,
                skipped=content.skipped,
                by_lines=content.by_lines,
                chunks=[(item.chunk, item.symbols) for item in content.chunks],
            )
        )
        self._batch_bytes += reading.entry.size
        if len(self._batch) >= _BATCH_FILES or self._batch_bytes >= _BATCH_BYTES:
            self._flush()

    def _unreadable(self, entry: FileEntry, before: KnownFile | None) -> None:
        """Gone, replaced or forbidden since it was listed: what the index held of it would be a ghost."""
        self.skipped[filters.UNREADABLE] += 1
        if before:
            self._flush()
            self.writer.delete([entry.path])
            self.deleted += not before.skipped

    def _count(self, before: KnownFile | None, skipped: str, same: bool) -> None:
        if skipped:
            self.skipped[skipped] += 1
            self.deleted += bool(before and not before.skipped)
        elif same:
            self.unchanged += 1
        elif before and not before.skipped:
            self.changed += 1
        else:
            self.added += 1

    def _flush(self) -> None:
        if self._batch:
            self.writer.put(self._batch)
        if self._touched:
            self.writer.touch(self._touched)
        self._batch, self._touched, self._batch_bytes = [], [], 0


def _same(entry: FileEntry, before: KnownFile) -> bool:
    unchanged = entry.size == before.size and entry.mtime_ns == before.mtime_ns
    return unchanged and before.seen_ns - before.mtime_ns > _RACY_NS
