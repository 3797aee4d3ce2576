"""The embedding model that the setting `embedder` names."""

from __future__ import annotations

import os
from pathlib import Path

from kvd.config import DEFAULT_EMBEDDER
from kvd.errors import ModelError, UsageError
from kvd.models.embedding import EmbeddingModel, read_embedding_model

HINT = "kvd config unset embedder"


def embedder_path(text: str) -> Path:
    """Raises `UsageError` for a path with nothing there."""
    path = Path(os.path.expanduser(text))
    if not path.is_absolute():
        raise UsageError(f"embedder must be {DEFAULT_EMBEDDER} or an absolute path, not {path}", hint=HINT)
    try:
        path.stat()
    except (OSError, ValueError) as error:
        fault = getattr(error, "strerror", None) or error
        raise UsageError(f"can't read the embedder {path}: {fault}", hint=HINT) from error
    return path


def read_embedder(path: Path) -> EmbeddingModel:
    """Raises `ModelError` for what is no usable model."""
    try:
        return read_embedding_model(path)
    except ModelError as error:
        raise ModelError(f"no embedder: {error.message}", hint=error.hint or HINT) from error
    except OSError as error:
        raise ModelError(f"can't read the embedder {path}: {error.strerror}", hint=HINT) from error
