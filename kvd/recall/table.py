"""The embedder that ships: a table of word vectors, trained by `kvd.training`, 8 bits a number.

A text's vector is the weighted sum of its words' vectors, at length 1. Words weigh differently in a question and in
what is found. The file is numpy's `.npz` without compression: `features` (the version of `kvd.recall.features`),
`version` (of the table), `words` (UTF-8, one a line), `buckets` (how many), `vectors` (int8, [words + buckets,
dimension]), and for each row what to multiply it by, `asking` and `found` (float16).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvd.recall.features import FEATURES_VERSION, Features

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT_FILE = Path(__file__).resolve().parent / "table.npz"


class TableEmbedder:
    """Vectors by the table in `file`. Raises `ValueError` for a table that belongs to other features."""

    name = "code-words"

    def __init__(self, file: Path = DEFAULT_FILE) -> None:
        import numpy as np

        with np.load(file, allow_pickle=False) as arrays:
            if int(arrays["features"]) != FEATURES_VERSION:
                raise ValueError(f"{file} belongs to features {int(arrays['features'])}, not {FEATURES_VERSION}")
            self.version = int(arrays["version"])
            self._features = Features(bytes(arrays["words"]).decode("utf-8").split("\n"), int(arrays["buckets"]))
            self._vectors: NDArray[np.int8] = arrays["vectors"]
            self._asking: NDArray[np.float32] = arrays["asking"].astype(np.float32)
            self._found: NDArray[np.float32] = arrays["found"].astype(np.float32)
        self.dimension = int(self._vectors.shape[1])

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import numpy as np

        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for place, text in enumerate(texts):
            self._sum(vectors[place], self._features.document(text), self._found)
        return vectors

    def embed_query(self, text: str) -> NDArray[np.float32]:
        import numpy as np

        vector = np.zeros(self.dimension, np.float32)
        self._sum(vector, self._features.query(text), self._asking)
        return vector

    @cached_property
    def _table(self) -> NDArray[np.float32]:
        import numpy as np

        return self._vectors.astype(np.float32)

    def _sum(self, vector: NDArray[np.float32], weighed: dict[int, float], scales: NDArray[np.float32]) -> None:
        import numpy as np

        if not weighed:
            return
        rows = np.fromiter(weighed, np.intp, len(weighed))
        factors = np.fromiter(weighed.values(), np.float32, len(weighed)) * scales[rows]
        np.dot(factors, self._table[rows], out=vector)
        length = float(np.linalg.norm(vector))
        if length > 1e-9:
            vector /= length


@lru_cache(maxsize=1)
def shipped() -> TableEmbedder:
    """The table of this installation, loaded once a process."""
    return TableEmbedder()
