"""One file's bytes to its chunks, or to why it has none."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from kvd.source import filters
from kvd.source.chunker import SourceChunk, chunk_text
from kvd.source.languages import NOTEBOOK, has_grammar, language_of
from kvd.source.notebook import chunk_notebook
from kvd.source.text import decode
from kvd.source.tokens import holds_token
from kvd.types import Chunk

_CHUNK_FIELDS = tuple(field.name for field in fields(Chunk))


@dataclass(frozen=True, slots=True)
class Content:
    """`skipped` is a reason of `kvd.source.filters`, or "" where there are chunks."""

    language: str = ""
    skipped: str = ""
    chunks: list[SourceChunk] = field(default_factory=list)
    by_lines: bool = False
    """Cut without a grammar."""

    def to_json(self) -> list[Any]:
        """Positional, as a repository has many chunks."""
        chunks = [[[getattr(item.chunk, name) for name in _CHUNK_FIELDS], item.symbols] for item in self.chunks]
        return [self.language, self.skipped, chunks, self.by_lines]

    @classmethod
    def from_json(cls, data: list[Any]) -> Content:
        language, skipped, chunks, by_lines = data
        return cls(language, skipped, [SourceChunk(Chunk(*values), tuple(names)) for values, names in chunks], by_lines)


def read_content(path: str, data: bytes, by_lines: bool = False, trusted: bool = False) -> Content:
    """Decode, judge and cut the content of the file at `path`; one that is `trusted` is not searched for secrets.

    Parsers are native code that some inputs make crash: `kvd.source.cutter` runs this in a process of its own.
    `by_lines` runs no parser.
    """
    if not trusted and filters.holds_private_key(data):
        return Content(skipped=filters.SECRET)
    text = decode(data)
    if text is None:
        return Content(skipped=filters.BINARY)
    if not trusted and holds_token(path, text):
        return Content(skipped=filters.SECRET)
    reason = filters.content_reason(path, text)
    if reason:
        return Content(skipped=reason)
    language = language_of(path, text)
    if language == NOTEBOOK:
        notebook = None if by_lines else chunk_notebook(path, text)
        if notebook is None:
            return Content(language=language, skipped=filters.UNREADABLE)
        return Content(language, "" if notebook else filters.EMPTY, notebook)
    by_lines = by_lines or not has_grammar(language)
    return Content(language, "", chunk_text(path, text, language, by_lines), by_lines)
