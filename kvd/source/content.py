"""One file's bytes to its chunks, or to why it has none."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvd.source import filters
from kvd.source.chunker import SourceChunk, chunk_text
from kvd.source.languages import NOTEBOOK, language_of
from kvd.source.notebook import chunk_notebook
from kvd.source.text import decode


@dataclass(frozen=True, slots=True)
class Content:
    """`skipped` is a reason of `kvd.source.filters`, or "" where there are chunks."""

    language: str = ""
    skipped: str = ""
    chunks: list[SourceChunk] = field(default_factory=list)


def read_content(path: str, data: bytes) -> Content:
    """Decode, judge and cut the content of the file at `path`."""
    if filters.holds_private_key(data):
        return Content(skipped=filters.SECRET)
    text = decode(data)
    if text is None:
        return Content(skipped=filters.BINARY)
    reason = filters.content_reason(path, text)
    if reason:
        return Content(skipped=reason)
    language = language_of(path, text)
    if language == NOTEBOOK:
        notebook = chunk_notebook(path, text)
        if notebook is None:
            return Content(language=language, skipped=filters.UNREADABLE)
        return Content(language, "" if notebook else filters.EMPTY, notebook)
    return Content(language, "", chunk_text(path, text, language))
