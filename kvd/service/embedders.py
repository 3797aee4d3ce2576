"""Which embedder the settings name, and how an index run may use it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from kvd import paths
from kvd.config import DEFAULT_EMBEDDER, Settings
from kvd.errors import KvdError, ModelError, UsageError
from kvd.models.files import hash_file
from kvd.models.gguf import check_gguf, embedding_width
from kvd.service.embedding_child import EmbeddingChild
from kvd.service.indexer import Means

_INLINE_S = 0.25
"""For so long the default embedder, which is fast, works at the end of an index run; the rest follows behind."""


class Embedders:
    """One at a time, kept while the settings name it. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: EmbeddingChild | None = None
        self._stamp: tuple[str, int, int, int] | None = None

    def means(self, settings: Settings) -> Means:
        """What the settings ask for. Blocks while a new model's file is read once.

        Raises `UsageError` for a path without a file, `ModelError` for a file that is no usable model.
        """
        with self._lock:
            if settings.embedder == DEFAULT_EMBEDDER:
                self._close()
                return Means(None, _INLINE_S)
            path = Path(os.path.expanduser(settings.embedder))
            stamp = _stamp(path)
            if self._child is None or stamp != self._stamp:
                self._close()
                self._child, self._stamp = _child(path, settings.threads), stamp
            return Means(self._child, 0.0)

    def close_if_idle(self, seconds: float) -> None:
        """End a child that nothing was asked for so long; a later use starts another."""
        with self._lock:
            if self._child is not None:
                self._child.close_if_idle(seconds)

    def interrupt(self) -> None:
        """Let whoever waits for the child wait no longer; they get `UnavailableError`."""
        child = self._child
        if child is not None:
            child.interrupt()

    def close(self) -> None:
        """End the child, if there is one; a later use starts another."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._child is not None:
            # It may be at a batch for minutes, or hang; what it has made before is kept.
            self._child.interrupt()
            self._child.close()


def _stamp(path: Path) -> tuple[str, int, int, int]:
    if not path.is_absolute():
        raise UsageError(f"embedder must be {DEFAULT_EMBEDDER} or an absolute path, not {path}", hint=_hint())
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        fault = getattr(error, "strerror", None) or error
        raise UsageError(f"can't read the embedder {path}: {fault}", hint=_hint()) from error
    return str(path), status.st_size, status.st_mtime_ns, status.st_ino


def _child(path: Path, threads: int) -> EmbeddingChild:
    try:
        check_gguf(path)
        return EmbeddingChild(path, hash_file(path), embedding_width(path), threads)
    except KvdError as error:
        raise ModelError(f"no embedder: {error.message}", hint=_hint()) from error
    except OSError as error:
        raise ModelError(f"can't read the embedder {path}: {error.strerror}", hint=_hint()) from error


def _hint() -> str:
    return f"edit {paths.config_file()}"
