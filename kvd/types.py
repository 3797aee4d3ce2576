"""Frozen values that cross package borders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one file: whole functions or classes where they fit.

    `path` is relative to the repository's root, with `/`. Lines are 1-based and inclusive. Bytes are offsets
    into the file's text as UTF-8 (decoded, without byte order mark, every line end a `\\n`), end exclusive. `scope` is
    the enclosing definition (`Session.close`), the first ones of a chunk that holds several, or "".
    """

    path: str
    language: str
    scope: str
    start_line: int
    end_line: int
    start_byte: int
    end_byte: int
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A recalled chunk; a higher score is better, scores of one query are comparable."""

    chunk: Chunk
    score: float


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long job is. `total` is 0 while it is not known."""

    stage: str
    done: int = 0
    total: int = 0
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """What one run of the indexer did. `skipped` counts files by reason."""

    repo: str
    files: int
    chunks: int
    added: int
    changed: int
    deleted: int
    unchanged: int
    skipped: dict[str, int] = field(default_factory=dict)
    embedder: str = ""
    seconds: float = 0.0
    by_lines: int = 0
    """Indexed files that were cut by lines: no grammar knows them, or their parser failed."""
    by_lines_reasons: dict[str, int] = field(default_factory=dict)
    """The same by reason: `no grammar: LANGUAGE` or `parser failed`."""
    languages: dict[str, int] = field(default_factory=dict)
    """Indexed files by language."""
    rebuilt: str = ""
    """Why the index was made anew (damaged file, other repository), or ""."""
    pending_vectors: int = 0
    """Chunks that are found by their words alone until they get a vector."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Rope:
    """How a model rotates its keys: pairs of channels of each head by position x frequency.

    `pairing` is "neox" (channel j with j + n_rot/2) or "norm" (channel 2j with 2j + 1). `frequencies` has one
    entry a pair, in radians a position; channels from `n_rot` on are not rotated.
    """

    pairing: str
    head_dim: int
    n_rot: int
    frequencies: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class KVShape:
    """The shape of a model's KV cells: keys and values are `[n_layer, tokens, width]` float16 each."""

    n_layer: int
    width: int

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.n_layer * self.width * 2
