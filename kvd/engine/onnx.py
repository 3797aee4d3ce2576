"""Texts to vectors with an ONNX model on the CPU: onnxruntime computes, the library tokenizers cuts into tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from tokenizers import Tokenizer

from kvd.engine.machine import physical_cores
from kvd.engine.vectors import LONGEST_TEXT, first_line, to_unit_length
from kvd.errors import ModelError

_QUIET = 3
"""Errors alone."""
_INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}

Array = npt.NDArray[Any]


class OnnxEngine:
    """`settings`: what `kvd.models.embedding` says of the model. Raises `ModelError` for one that can't be loaded."""

    def __init__(self, settings: Mapping[str, Any], threads: int = 0) -> None:
        self._path = str(settings["path"])
        self._output, self._pooling = str(settings["output"]), str(settings["pooling"])
        self._lowercase, self._dimension = bool(settings["lowercase"]), int(settings["dimension"])
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or physical_cores()
        options.log_severity_level = _QUIET
        # Threads that wait are to sleep, and what a long text took is to be given back.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        try:
            self._tokenizer = Tokenizer.from_file(str(settings["tokenizer"]))
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(min(LONGEST_TEXT, int(settings["longest"])))
            self._session = onnxruntime.InferenceSession(self._path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # each library has its own kinds
            raise ModelError(f"can't load {self._path}: {first_line(error)}", hint="kvd logs") from error
        self._inputs = {item.name: _INTEGERS.get(item.type, np.int64) for item in self._session.get_inputs()}

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Shape [number of texts, dimension]; rows have length 1. Raises `ModelError`."""
        vectors = np.zeros((len(texts), self._dimension), np.float32)
        # One by one: several at once, filled up to one length, take more memory and were measured to be no faster, and
        # what an int8 model makes of a text depends on what is beside it.
        for row, tokens in enumerate(self._tokens(texts)):
            if not tokens:
                continue
            made = self._compute(tokens)
            if made.shape != (self._dimension,):
                raise ModelError(f"{self._path} gives vectors of {made.shape[-1]} numbers", hint="kvd doctor")
            vectors[row] = made
        return to_unit_length(vectors)

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        # Lone surrogates are no Unicode text, which the library wants.
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        if self._lowercase:
            clean = [text.lower() for text in clean]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(clean)]

    def _compute(self, tokens: list[int]) -> Array:
        """Shape [width]."""
        ids = np.array([tokens], np.int64)
        given = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
            "position_ids": np.arange(ids.size)[None],
        }
        feed = {name: given[name].astype(kind) for name, kind in self._inputs.items()}
        try:
            (output,) = self._session.run([self._output], feed)
        except Exception as error:  # the library has its own kinds
            raise ModelError(f"can't compute with {self._path}: {first_line(error)}", hint="kvd logs") from error
        return pooled(output[0].astype(np.float32), self._pooling)


def pooled(output: Array, pooling: str) -> Array:
    """A text's vector, [width], from its tokens', [tokens, width].

    `pooling`: mean, cls (the first token's), last, max, or "" for what is the text's vector already.
    """
    made: Array
    if not pooling:
        made = output
    elif pooling == "cls":
        made = output[0]
    elif pooling == "last":
        made = output[-1]
    elif pooling == "max":
        made = output.max(axis=0)
    else:
        made = output.mean(axis=0)
    return made
