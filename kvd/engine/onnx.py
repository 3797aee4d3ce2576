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

_STEP = 1024
"""Tokens of several texts together, those that fill a shorter one up included: more cost memory, and gain no time."""
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
        tokens = self._tokens(texts)
        # By length, so that little is filled up.
        order = sorted((row for row, ids in enumerate(tokens) if ids), key=lambda row: len(tokens[row]))
        vectors = np.zeros((len(texts), self._dimension), np.float32)
        for rows in _batches(order, tokens):
            made = self._compute([tokens[row] for row in rows])
            if made.shape != (len(rows), self._dimension):
                raise ModelError(f"{self._path} gives vectors of {made.shape[-1]} numbers", hint="kvd doctor")
            vectors[rows] = made
        return to_unit_length(vectors)

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        # Lone surrogates are no Unicode text, which the library wants.
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        if self._lowercase:
            clean = [text.lower() for text in clean]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(clean)]

    def _compute(self, texts: Sequence[list[int]]) -> Array:
        """Shape [texts, width]."""
        width = max(map(len, texts))
        ids = np.zeros((len(texts), width), np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(texts):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        given = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(ids),
            "position_ids": np.broadcast_to(np.arange(width), ids.shape),
        }
        feed = {name: np.ascontiguousarray(given[name], kind) for name, kind in self._inputs.items()}
        try:
            (output,) = self._session.run([self._output], feed)
        except Exception as error:  # the library has its own kinds
            raise ModelError(f"can't compute with {self._path}: {first_line(error)}", hint="kvd logs") from error
        return pooled(output.astype(np.float32), mask, self._pooling)


def pooled(output: Array, mask: Array, pooling: str) -> Array:
    """A vector for each text, [texts, width], from one for each token, [texts, tokens, width].

    `mask`: 1 for a text's tokens, which come first, 0 for what follows them. `pooling`: mean, cls (the first token's),
    last, max, or "" for what is a vector for each text already.
    """
    if not pooling:
        return output
    lengths = mask.sum(axis=1)
    made: Array
    if pooling == "cls":
        made = output[:, 0]
    elif pooling == "last":
        made = output[np.arange(len(output)), lengths - 1]
    elif pooling == "max":
        made = np.where(mask[:, :, None] > 0, output, -np.inf).max(axis=1)
    else:
        made = np.einsum("btw,bt->bw", output, mask.astype(np.float32)) / lengths[:, None]
    return made


def _batches(order: Sequence[int], tokens: Sequence[list[int]]) -> list[list[int]]:
    """Rows, shortest first, in groups of at most `_STEP` tokens when filled up to the longest of the group."""
    groups: list[list[int]] = []
    for row in order:
        if groups and (len(groups[-1]) + 1) * len(tokens[row]) <= _STEP:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups
