"""The default embedder: what words mean, by the trained table, and how they are written, hashed.

The table alone brings words of like meaning together, but loses some of what tells rare names apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from kvd.recall.embed import HashedWords
from kvd.recall.table import TableEmbedder
from kvd.recall.words import query_words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WRITTEN = 1 / 3
"""The hashed vector's share of a similarity; the rest is the table's."""


class CodeWords:
    """Both vectors side by side, so that similarities add up. The version is the table's."""

    name = "code-words"

    def __init__(self) -> None:
        self._table, self._hashed = TableEmbedder(), HashedWords()
        self.version = self._table.version
        self.dimension = self._table.dimension + self._hashed.dimension

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return _joined(self._table.embed_documents(texts), self._hashed.embed_documents(texts))

    def embed_query(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = _joined(
            self._table.embed_query(text)[None], self._hashed.embed_query(" ".join(query_words(text)))[None]
        )[0]
        return vector


def _joined(meant: NDArray[np.float32], written: NDArray[np.float32]) -> NDArray[np.float32]:
    import numpy as np

    vectors = np.hstack([meant * (1 - _WRITTEN) ** 0.5, written * _WRITTEN**0.5])
    # One of the two may be 0, as for a number.
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: NDArray[np.float32] = vectors / np.maximum(lengths, 1e-9)
    return scaled


@lru_cache(maxsize=1)
def shipped() -> CodeWords:
    """The embedder of this installation, loaded once a process."""
    return CodeWords()
