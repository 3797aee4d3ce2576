"""Texts to vectors with a llama.cpp model on the CPU, pooled as its file says: mean, the first token's, the last's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from kvd.engine.llama import SEQUENCES, load_model, tokenize
from kvd.engine.machine import physical_cores
from kvd.engine.vectors import LONGEST_TEXT, to_unit_length
from kvd.errors import ModelError

_STEP = 512
"""Tokens of several texts together: more cost time, as llama.cpp computes attention across texts and masks it."""
_NONE, _MEAN, _RANK = 0, 1, 4
"""`enum llama_pooling_type`; -1 leaves it to the file."""


class EmbeddingEngine:
    """Raises `ModelError` for a file that llama.cpp can't load, and for a reranker."""

    def __init__(self, path: Path, threads: int = 0) -> None:
        self._path = path
        self._model = load_model(path, 0)
        if not self._model:
            raise ModelError(f"llama.cpp can't load {path}", hint="kvd logs")
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._longest = min(LONGEST_TEXT, int(llama_cpp.llama_model_n_ctx_train(self._model)) or LONGEST_TEXT)
        self._room = max(self._longest, _STEP)
        self._context = self._make_context(-1, threads)
        if llama_cpp.llama_pooling_type(self._context) == _NONE:
            llama_cpp.llama_free(self._context)
            self._context = self._make_context(_MEAN, threads)
        if llama_cpp.llama_pooling_type(self._context) == _RANK:
            raise ModelError(f"{path} is a reranker: it makes no vectors", hint="kvd logs")
        self.dimension = int(llama_cpp.llama_model_n_embd(self._model))
        self._batch = llama_cpp.llama_batch_init(self._room, 0, 1)

    def _make_context(self, pooling: int, threads: int) -> Any:
        params = llama_cpp.llama_context_default_params()
        # What is pooled has to be in one step.
        params.n_ctx = params.n_batch = params.n_ubatch = self._room
        params.n_seq_max = SEQUENCES
        params.kv_unified = True
        params.embeddings = True
        params.pooling_type = pooling
        params.n_threads = params.n_threads_batch = threads or physical_cores()
        params.no_perf = True
        context = llama_cpp.llama_init_from_model(self._model, params)
        if not context:
            raise ModelError(f"llama.cpp can't make a context for {self._path}", hint="kvd logs")
        return context

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Shape [number of texts, dimension]; rows have length 1. Raises `ModelError`."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        waiting: list[tuple[int, list[int]]] = []
        for row, text in enumerate(texts):
            tokens = self._tokens(text)
            full = len(waiting) == SEQUENCES or sum(len(other) for _, other in waiting) + len(tokens) > _STEP
            if waiting and full:
                self._compute(waiting, vectors)
                waiting = []
            if tokens:
                waiting.append((row, tokens))
        if waiting:
            self._compute(waiting, vectors)
        return to_unit_length(vectors)

    def _tokens(self, text: str) -> list[int]:
        tokens = tokenize(self._vocab, text, special=False, marks=True)
        # The last one is the model's own mark of the end, where it has one.
        return tokens if len(tokens) <= self._longest else [*tokens[: self._longest - 1], tokens[-1]]

    def _compute(self, texts: Sequence[tuple[int, list[int]]], vectors: npt.NDArray[np.float32]) -> None:
        """One step for texts that fit it; each is a sequence."""
        batch, size = self._batch, 0
        for sequence, (_, tokens) in enumerate(texts):
            for position, token in enumerate(tokens):
                batch.token[size], batch.pos[size] = token, position
                batch.n_seq_id[size], batch.seq_id[size][0] = 1, sequence
                batch.logits[size] = True
                size += 1
        batch.n_tokens = size
        if memory := llama_cpp.llama_get_memory(self._context):
            llama_cpp.llama_memory_clear(memory, False)
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise ModelError(f"llama.cpp can't compute vectors with {self._path} ({status})", hint="kvd logs")
        for sequence, (row, _) in enumerate(texts):
            pointer = llama_cpp.llama_get_embeddings_seq(self._context, sequence)
            vectors[row] = np.ctypeslib.as_array(pointer, (self.dimension,))
