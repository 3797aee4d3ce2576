"""What turns texts into vectors. Which embedder wrote an index is recorded in it; another one redoes its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Embedder(Protocol):
    """Texts to vectors. The same name and version give the same vectors, in every process."""

    name: str
    version: int
    dimension: int

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Shape [number of texts, dimension]; rows have length 1, or 0 where there is nothing to say."""
        ...

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Shape [dimension], length 1 or 0."""
        ...


def label(embedder: Embedder) -> str:
    """What an index records: `name/version/dimension`."""
    return f"{embedder.name}/{embedder.version}/{embedder.dimension}"


def embedded_text(path: str, scope: str, text: str) -> str:
    """What is embedded of a chunk."""
    return f"{path} {scope}\n{text}"


def default_embedder() -> Embedder:
    """The embedder for new indexes; loaded once a process."""
    from kvd.recall.table import shipped

    return shipped()
