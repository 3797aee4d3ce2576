"""Writes embedding models of BERT's kind that llama.cpp loads and computes with; some hundred kB, random weights.

Texts with words in common come out nearer to each other than others, because each token adds its own vector.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

WIDTH = 64
LONGEST = 128
"""Tokens that it was trained for."""

_LAYERS, _HEADS, _FEED_FORWARD = 2, 4, 96
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_SPACE = "\u2581"
_WORDS = ("def", "class", "return", "session", "close", "open", "cookie", "paint", "canvas", "password", "user", "file")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789().:,_=/'\""


def _vocabulary() -> list[str]:
    """A piece that begins a word has a mark before it."""
    return [*_SPECIAL, *(_SPACE + word for word in _WORDS), *(_SPACE + sign for sign in _LETTERS), *_LETTERS]


def write_tiny_bert(path: Path, pooling: gguf.PoolingType | None = gguf.PoolingType.MEAN, seed: int = 1) -> Path:
    """Write a model to `path`, and return that. `pooling` None leaves it unsaid."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("tiny bert")
    writer.add_context_length(LONGEST)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_block_count(_LAYERS)
    writer.add_head_count(_HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    _write_vocabulary(writer)
    for name, tensor in _tensors(seed).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = _vocabulary()
    kinds = [gguf.TokenType.CONTROL if token in _SPECIAL else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_token_type_count(1)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(3)
    writer.add_sep_token_id(3)


def _tensors(seed: int) -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    tensors: dict[str, npt.NDArray[np.float32]] = {}

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        values = random.standard_normal((rows, columns), dtype=np.float32) * scale / np.sqrt(columns)
        tensors[f"{name}.weight"] = values.astype(np.float32)

    def dense(name: str, rows: int, columns: int) -> None:
        matrix(name, rows, columns, 0.3)
        tensors[f"{name}.bias"] = np.zeros(rows, np.float32)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)

    matrix("token_embd", len(_vocabulary()), WIDTH, WIDTH**0.5)
    matrix("token_types", 1, WIDTH, 0.1)
    matrix("position_embd", LONGEST, WIDTH, 0.1)
    norm("token_embd_norm")
    for layer in (f"blk.{number}" for number in range(_LAYERS)):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            dense(f"{layer}.{name}", WIDTH, WIDTH)
        norm(f"{layer}.attn_output_norm")
        dense(f"{layer}.ffn_up", _FEED_FORWARD, WIDTH)
        dense(f"{layer}.ffn_down", WIDTH, _FEED_FORWARD)
        norm(f"{layer}.layer_output_norm")
    return tensors
