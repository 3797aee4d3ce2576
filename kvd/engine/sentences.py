"""Texts to vectors with the library sentence-transformers, on the CPU, from a folder alone: nothing is fetched."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvd.engine.machine import physical_cores
from kvd.engine.vectors import LONGEST_TEXT, first_line, to_unit_length
from kvd.errors import ModelError

_BATCH = 8
"""Texts at a time."""


class SentencesEngine:
    """`settings`: what `kvd.models.embedding` says of the model. Raises `ModelError` for one that can't be loaded."""

    def __init__(self, settings: Mapping[str, Any], threads: int = 0) -> None:
        # Read when the libraries are imported.
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        os.environ["TQDM_DISABLE"] = "1"
        self._path = str(settings["path"])
        try:
            import torch
            from sentence_transformers import SentenceTransformer

            torch.set_num_threads(threads or physical_cores())
            self._model = SentenceTransformer(
                self._path,
                device="cpu",
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True, "dtype": torch.float32},
            )
            longest = self._model.max_seq_length
            # A table of token vectors has no limit, and needs none.
            if longest is None or LONGEST_TEXT < longest < math.inf:
                self._model.max_seq_length = LONGEST_TEXT
        except Exception as error:  # it raises whatever the libraries below it raise
            raise ModelError(f"can't load {self._path}: {first_line(error)}", hint="kvd logs") from error

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Shape [number of texts, dimension]; rows have length 1. Raises `ModelError`."""
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        try:
            # A prompt is there already; with None the model's own would be put before it.
            vectors = self._model.encode(clean, prompt="", batch_size=_BATCH, show_progress_bar=False)
        except Exception as error:
            raise ModelError(f"can't compute with {self._path}: {first_line(error)}", hint="kvd logs") from error
        return to_unit_length(np.array(vectors, np.float32))
