"""Pairs as rows and factors in flat arrays, ready for training."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvd.recall.embed import embedded_text
from kvd.recall.features import Features
from kvd.recall.words import word_counts
from kvd.training.pairs import Pair


def read_pairs(path: Path, limit: int | None = None) -> list[Pair]:
    """The first `limit` pairs of a package's file; they are in a random order there."""
    with path.open(encoding="utf-8") as lines:
        return [Pair(**json.loads(line)) for line in islice(lines, limit)]


_COUNTED = 200
"""Pairs of a package that are read for the vocabulary."""
DOCS, OTHERS = 400, 250
"""Pairs of a package that are trained with: those of definitions' docs, and the other kinds."""


def vocabulary(files: Iterable[Path], size: int) -> list[str]:
    """The words that are in most packages, then in most texts; no word of a single package."""
    texts: Counter[str] = Counter()
    packages: Counter[str] = Counter()
    for path in files:
        here: Counter[str] = Counter()
        for pair in read_pairs(path, _COUNTED):
            here.update(word_counts(embedded_text(pair.path, pair.scope, pair.text)).keys())
            here.update(word_counts(pair.query).keys())
        texts.update(here)
        packages.update(here.keys())
    kept = [word for word, number in packages.items() if number >= 4 and not (word.isdigit() and len(word) > 3)]
    # Spread over packages counts more than frequency within some.
    kept.sort(key=lambda word: (-packages[word] * np.log1p(texts[word]), word))
    return kept[:size]


@dataclass(slots=True)
class Bags:
    """Texts as rows and factors, one after the other; `offsets` has one entry more than there are texts."""

    rows: NDArray[np.int32]
    factors: NDArray[np.float32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, weighed: Sequence[dict[int, float]]) -> Bags:
        lengths = np.fromiter((len(item) for item in weighed), np.int64, len(weighed))
        total = int(lengths.sum())
        rows = np.fromiter((row for item in weighed for row in item), np.int32, total)
        factors = np.fromiter((factor for item in weighed for factor in item.values()), np.float32, total)
        return cls(rows, factors, np.concatenate([[0], np.cumsum(lengths)]))

    @classmethod
    def joined(cls, parts: Sequence[Bags]) -> Bags:
        starts = np.cumsum([0] + [len(part.rows) for part in parts])
        offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts, strict=False)]
        return cls(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.factors for part in parts]),
            np.concatenate([*offsets, starts[-1:]]),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, which: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        """(rows, factors, offsets) of some texts; one offset more than there are texts."""
        starts, ends = self.offsets[which], self.offsets[which + 1]
        lengths = ends - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(int(offsets[-1])) + np.repeat(starts - offsets[:-1], lengths)
        return self.rows[places].astype(np.int64), self.factors[places], offsets


@dataclass(slots=True)
class Corpus:
    """`package`, `place` and `asked` number the package, place and query of each pair; same number, same thing."""

    queries: Bags
    documents: Bags
    package: NDArray[np.int32]
    place: NDArray[np.int64]
    asked: NDArray[np.int64]
    kind: NDArray[np.int8]


KINDS = ("doc", "remark", "name", "file", "prose")


def corpus_part(path: Path, features: Features, number: int) -> Corpus:
    """Some of one package's pairs; they are in a random order in their file."""
    pairs = read_pairs(path)
    described = [pair for pair in pairs if pair.kind == "doc"][:DOCS]
    pairs = described + [pair for pair in pairs if pair.kind != "doc"][:OTHERS]
    queries = Bags.of([features.query(pair.query) for pair in pairs])
    documents = Bags.of([features.document(embedded_text(pair.path, pair.scope, pair.text)) for pair in pairs])
    return Corpus(
        queries,
        documents,
        np.full(len(pairs), number, np.int32),
        np.array([hash(f"{number}:{pair.key}") for pair in pairs], np.int64),
        np.array([hash(pair.query) for pair in pairs], np.int64),
        np.array([KINDS.index(pair.kind) for pair in pairs], np.int8),
    )


def joined(parts: Sequence[Corpus]) -> Corpus:
    return Corpus(
        Bags.joined([part.queries for part in parts]),
        Bags.joined([part.documents for part in parts]),
        np.concatenate([part.package for part in parts]),
        np.concatenate([part.place for part in parts]),
        np.concatenate([part.asked for part in parts]),
        np.concatenate([part.kind for part in parts]),
    )
