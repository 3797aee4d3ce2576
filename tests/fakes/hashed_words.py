"""Vectors without a model, for tests that need an embedder of their own: the hashed parts of words."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from kvd.recall.words import STOPWORDS, parts_of, word_counts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_GRAM_SIZES = (3, 4, 5)
_WORD_WEIGHT = 0.6
_GRAMS_WEIGHT = 1.0
_LONGEST_PART = 16


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words of most programming languages: as common as "the" is in English.
_KEYWORDS = _set(
    """
    self return def func function fn class import public private protected static void int str string bool true false
    null none nil new else elif const var let end async await try catch except throw raise case break continue pub impl
    struct package type interface namespace include std object value values name args kwargs param params err error
    """
)


class HashedWords:
    """Signed feature hashing of word parts and their character n-grams.

    A feature's bucket and sign come from CRC-32, so they are the same everywhere. Repeats count logarithmically, and
    words that all code shares count little.
    """

    name = "hashed-words"
    version = 1
    dimension = 256

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import numpy as np

        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in enumerate(texts):
            self._add(vectors[row], text)
        return _normal(vectors)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self.embed_documents([text])[0]
        return vector

    def _add(self, vector: NDArray[np.float32], text: str) -> None:
        import numpy as np

        counts = word_counts(text)
        if not counts:
            return
        features = [_features(word, self.dimension) for word in counts]
        lengths = np.fromiter((len(places) for places, _ in features), np.intp, len(features))
        weights = 1.0 + np.log(np.fromiter(counts.values(), np.float32, len(counts)))
        places = np.concatenate([places for places, _ in features])
        values = np.concatenate([values for _, values in features]) * np.repeat(weights, lengths)
        vector += np.bincount(places, weights=values, minlength=self.dimension).astype(np.float32)


@lru_cache(maxsize=32_768)
def _features(word: str, dimension: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Buckets and signed weights of one word: itself and its n-grams."""
    import numpy as np

    damped = 0.15 if word in _common() else 1.0
    grams = _grams(word)
    names = [word, *grams]
    hashes = [zlib.crc32(name.encode("utf-8", "replace")) for name in names]
    places = np.array([value % dimension for value in hashes], np.intp)
    signs = np.array([1.0 if value & 0x8000_0000 else -1.0 for value in hashes], np.float32)
    each = _GRAMS_WEIGHT / max(1, len(grams)) ** 0.5
    weights = np.array([_WORD_WEIGHT] + [each] * len(grams), np.float32)
    return places, signs * weights * damped


def _grams(word: str) -> list[str]:
    if len(word) > _LONGEST_PART or "_" in word:
        # A whole identifier: its parts stand beside it and have n-grams of their own.
        return []
    marked = f"<{word}>"
    return [marked[i : i + n] for n in _GRAM_SIZES for i in range(len(marked) - n + 1) if n < len(marked)]


@lru_cache(maxsize=1)
def _common() -> frozenset[str]:
    return frozenset(part for word in STOPWORDS | _KEYWORDS for part in parts_of(word))


def _normal(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: NDArray[np.float32] = vectors / np.maximum(lengths, 1e-9)
    return scaled
