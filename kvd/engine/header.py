"""How much memory a model takes, told by the header of its GGUF file: ggml reads it, no weights are loaded."""

from __future__ import annotations

import ctypes
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from llama_cpp._ggml import libggml

from kvd.errors import ModelError

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_FLOAT16_BYTES = 2


class _InitParams(ctypes.Structure):
    """`struct gguf_init_params`: without a context to put them in, tensors are described and not read."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


_Size = tuple[str, tuple[int, ...], int]

libggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, _InitParams]
libggml.gguf_init_from_file.restype = ctypes.c_void_p
libggml.gguf_free.argtypes = [ctypes.c_void_p]
libggml.gguf_free.restype = None
libggml.gguf_get_n_tensors.argtypes = [ctypes.c_void_p]
libggml.gguf_get_n_tensors.restype = ctypes.c_int64
for _name, _result in (
    ("gguf_get_tensor_name", ctypes.c_char_p),
    ("gguf_get_tensor_size", ctypes.c_size_t),
    ("gguf_get_tensor_ne", ctypes.POINTER(ctypes.c_int64)),
):
    getattr(libggml, _name).argtypes = [ctypes.c_void_p, ctypes.c_int64]
    getattr(libggml, _name).restype = _result


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Bytes of weights: of each transformer block, and of the output layer. The token embedding stays with the CPU.

    `kv_bytes_per_token` is what a token takes in the cells of all blocks together, float16, as far as the names of
    tensors tell (0 for recurrent models). `vocabulary` is the number of tokens.
    """

    blocks: tuple[int, ...]
    output: int
    kv_bytes_per_token: int
    vocabulary: int


def read_size(path: Path) -> ModelSize:
    """Raises `ModelError` for a file that is no GGUF model."""
    handle = libggml.gguf_init_from_file(str(path).encode(), _InitParams(True, None))
    if not handle:
        raise ModelError(f"llama.cpp can't load {path}", hint="kvd setup")
    try:
        size = _summed([_tensor(handle, index) for index in range(libggml.gguf_get_n_tensors(handle))])
    finally:
        libggml.gguf_free(handle)
    if not size.blocks:
        raise ModelError(f"{path} holds no text model", hint="kvd setup")
    return size


def _tensor(handle: int, index: int) -> _Size:
    """Name, dimensions (columns first) and bytes."""
    name = bytes(libggml.gguf_get_tensor_name(handle, index)).decode("utf-8", "replace")
    return name, tuple(libggml.gguf_get_tensor_ne(handle, index)[:2]), int(libggml.gguf_get_tensor_size(handle, index))


def _summed(tensors: list[_Size]) -> ModelSize:
    blocks: defaultdict[int, int] = defaultdict(int)
    shapes = {name: shape for name, shape, _ in tensors}
    others = kv_width = 0
    for name, shape, size in tensors:
        if found := _BLOCK.fullmatch(name):
            blocks[int(found[1])] += size
            kv_width += _kv_width(found[2], shape)
        elif name != "token_embd.weight" or "output.weight" not in shapes:
            # Where input and output share their weights, llama.cpp keeps a copy for the output.
            others += size
    vocabulary = shapes.get("token_embd.weight", (0, 0))[1]
    return ModelSize(tuple(blocks[index] for index in sorted(blocks)), others, kv_width * _FLOAT16_BYTES, vocabulary)


def _kv_width(name: str, shape: tuple[int, ...]) -> int:
    """Numbers that a token's key or value, or both, take in a block's cells."""
    columns, rows = shape
    if name in ("attn_k.weight", "attn_v.weight"):
        return rows
    # Queries, keys and values in one matrix; queries are as wide as the model.
    return max(0, rows - columns) if name == "attn_qkv.weight" else 0
