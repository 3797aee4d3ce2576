"""Which embedder the settings name, and how an index run may use it."""

from __future__ import annotations

import threading
from pathlib import Path

from kvd.config import DEFAULT_EMBEDDER, Settings
from kvd.errors import ModelError
from kvd.models.embedder import HINT, embedder_path, read_embedder
from kvd.models.embedding import EmbeddingModel
from kvd.service.embedding_child import EmbeddingChild
from kvd.service.indexer import Means

Stamp = tuple[tuple[object, ...], ...]

_INLINE_S = 0.25
"""For so long the default embedder, which is fast, works at the end of an index run; the rest follows behind."""


class Embedders:
    """One at a time, kept while the settings name it. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: EmbeddingChild | None = None
        self._model: EmbeddingModel | None = None
        self._stamp: Stamp = ()

    def means(self, settings: Settings) -> Means:
        """What the settings ask for. Blocks while a new model's files are read once.

        Raises `UsageError` for a path with nothing there, `ModelError` for what is no usable model.
        """
        with self._lock:
            if settings.embedder == DEFAULT_EMBEDDER:
                self._close()
                return Means(None, _INLINE_S)
            path = embedder_path(settings.embedder)
            if self._child is None or self._model is None or _stamp(path, self._model) != self._stamp:
                self._close()
                self._child, self._model = None, read_embedder(path)
                # Before the files are read whole, so that what changes meanwhile is seen the next time.
                self._stamp = _stamp(path, self._model)
                self._child = _child(self._model, settings.threads)
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


def _stamp(path: Path, model: EmbeddingModel) -> Stamp:
    """What changes when another model is there."""
    stamps: list[tuple[object, ...]] = [(str(path),)]
    for file in model.watched:
        try:
            status = file.stat()
        except OSError:
            stamps.append((str(file),))
            continue
        stamps.append((str(file), status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(stamps)


def _child(model: EmbeddingModel, threads: int) -> EmbeddingChild:
    try:
        sha256 = model.sha256()
    except OSError as error:
        raise ModelError(f"can't read the embedder {model.path}: {error.strerror}", hint=HINT) from error
    return EmbeddingChild(model.path, sha256, model.dimension, threads, load=model.request(), prompts=model.prompts)
