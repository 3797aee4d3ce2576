"""Writes GGUF files that llama.cpp loads and computes with: real architectures, a few hundred kB, random weights.

What they answer means nothing. They are there for what llama.cpp does with a model of their kind: how its keys are
rotated, what its memory holds, which sequences can be shared, and whether the process survives it. Weights and
activations are of the usual sizes, so that attention, states and positions all show in the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

_TRAINED_CONTEXT = 4096
_WIDTH, _FEED_FORWARD, _LAYERS = 128, 192, 3
_HEADS, _KV_HEADS, _HEAD_DIM = 4, 2, 32
_INNER, _STATE, _CONV, _STEP_RANK = 2 * _WIDTH, 16, 4, 8
"""Mamba: channels of a block, states of a channel, taps of the convolution, rank of the step size."""
_SHORT_CONV = 3
WINDOW = 48
"""Tokens that a sliding window of these models spans: fewer than any prompt's shared prefix has."""

Tensor = npt.NDArray[np.float32] | npt.NDArray[np.float16]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>model\n' }}{% endif %}"
)


# The vocabulary: SentencePiece with bytes to fall back to, as Llama 2 and Gemma have it

_SPECIAL = ("<unk>", "<s>", "</s>")
_CHAT_MARKS = ("<|im_start|>", "<|im_end|>")
_SPACE = "\u2581"
_WORDS = (
    "and answer are as call class code def else file for from functions if import in is its lines never not of "
    "password path pieces question raise repository request return self session that the these to user value"
)
_COMMON_PAIRS = (
    "al an ar as at co de ea ed en er es he hi in io is it le me nd ne ng nt of on or ou re ro se st te th ti ve"
)


def _pieces() -> Iterator[str]:
    """Every start of every word, alone and after a space, because words are merged from their start on."""
    yield from (_SPACE, 2 * _SPACE, 4 * _SPACE, 8 * _SPACE)
    for word in _WORDS.split():
        for text in (word, _SPACE + word):
            yield from (text[:length] for length in range(2, len(text) + 1))
    yield from _COMMON_PAIRS.split()


def _vocabulary() -> list[tuple[str, float, gguf.TokenType]]:
    """(text, score, type) of every token; the higher the score, the sooner two pieces are merged into this one."""
    tokens = [(text, 0.0, gguf.TokenType.CONTROL) for text in _SPECIAL]
    tokens[0] = (_SPECIAL[0], 0.0, gguf.TokenType.UNKNOWN)
    tokens += [(f"<0x{byte:02X}>", 0.0, gguf.TokenType.BYTE) for byte in range(256)]
    tokens += [(text, 0.0, gguf.TokenType.CONTROL) for text in _CHAT_MARKS]
    pieces = dict.fromkeys(_pieces())
    return tokens + [(piece, -float(rank), gguf.TokenType.NORMAL) for rank, piece in enumerate(pieces, start=1)]


def _write_vocabulary(writer: gguf.GGUFWriter, adds_bos: bool) -> int:
    """Returns the number of tokens."""
    tokens = _vocabulary()
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _, _ in tokens])
    writer.add_token_scores([score for _, score, _ in tokens])
    writer.add_token_types([int(kind) for _, _, kind in tokens])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(adds_bos)
    writer.add_add_space_prefix(False)
    return len(tokens)


# Weights


class _Weights:
    """The tensors of one model; the same seed gives the same file. Shapes are numpy's: the reverse of ggml's."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.tensors: dict[str, Tensor] = {}

    def matrix(self, name: str, rows: int, columns: int) -> None:
        """Maps `columns` channels to `rows`; scaled so that what goes in comes out about as large."""
        values = self._random.standard_normal((rows, columns), dtype=np.float32) / np.sqrt(columns)
        self.tensors[f"{name}.weight"] = values.astype(np.float16)

    def vector(self, name: str, size: int, mean: float, spread: float) -> None:
        """Norms, biases: llama.cpp wants everything with one dimension in float32."""
        values = mean + spread * self._random.standard_normal(size, dtype=np.float32)
        self.tensors[name] = values.astype(np.float32)

    def norms(self, *names: str, size: int = _WIDTH) -> None:
        for name in names:
            self.vector(f"{name}.weight", size, 1.0, 0.1)

    def taps(self, name: str, channels: int, taps: int) -> None:
        """Kernels of a convolution along the tokens, in float32."""
        values = self._random.standard_normal((channels, taps), dtype=np.float32) / np.sqrt(taps)
        self.tensors[f"{name}.weight"] = values.astype(np.float32)

    def embeddings(self, vocabulary: int, final_norm: str = "output_norm") -> None:
        values = self._random.standard_normal((vocabulary, _WIDTH), dtype=np.float32)
        self.tensors["token_embd.weight"] = values.astype(np.float16)
        self.norms(final_norm)
        self.matrix("output", vocabulary, _WIDTH)

    def attention(self, layer: str, biases: bool = False) -> None:
        heads = {"attn_q": _HEADS, "attn_k": _KV_HEADS, "attn_v": _KV_HEADS}
        for name, count in heads.items():
            self.matrix(f"{layer}.{name}", count * _HEAD_DIM, _WIDTH)
            if biases:
                # Keys of Qwen 2 are known for their large offsets.
                self.vector(f"{layer}.{name}.bias", count * _HEAD_DIM, 0.0, 2.0 if name == "attn_k" else 0.2)
        self.matrix(f"{layer}.attn_output", _WIDTH, _HEADS * _HEAD_DIM)

    def head_norms(self, layer: str) -> None:
        self.norms(f"{layer}.attn_q_norm", f"{layer}.attn_k_norm", size=_HEAD_DIM)

    def feed_forward(self, layer: str) -> None:
        self.norms(f"{layer}.ffn_norm")
        self.matrix(f"{layer}.ffn_gate", _FEED_FORWARD, _WIDTH)
        self.matrix(f"{layer}.ffn_up", _FEED_FORWARD, _WIDTH)
        self.matrix(f"{layer}.ffn_down", _WIDTH, _FEED_FORWARD)

    def mamba(self, layer: str, norms: bool = False) -> None:
        self.matrix(f"{layer}.ssm_in", 2 * _INNER, _WIDTH)
        self.taps(f"{layer}.ssm_conv1d", _INNER, _CONV)
        self.vector(f"{layer}.ssm_conv1d.bias", _INNER, 0.0, 0.1)
        self.matrix(f"{layer}.ssm_x", _STEP_RANK + 2 * _STATE, _INNER)
        self.matrix(f"{layer}.ssm_dt", _INNER, _STEP_RANK)
        # Steps of softplus(-4) = 0.02 and decays of 1 to 16: states remember some hundred tokens.
        self.vector(f"{layer}.ssm_dt.bias", _INNER, -4.0, 0.5)
        self.tensors[f"{layer}.ssm_a"] = np.tile(-np.arange(1, _STATE + 1, dtype=np.float32), (_INNER, 1))
        self.vector(f"{layer}.ssm_d", _INNER, 1.0, 0.1)
        self.matrix(f"{layer}.ssm_out", _WIDTH, _INNER)
        if norms:
            for name, size in (("ssm_dt_norm", _STEP_RANK), ("ssm_b_norm", _STATE), ("ssm_c_norm", _STATE)):
                self.norms(f"{layer}.{name}", size=size)

    def short_convolution(self, layer: str) -> None:
        self.matrix(f"{layer}.shortconv.in_proj", 3 * _WIDTH, _WIDTH)
        self.taps(f"{layer}.shortconv.conv", _WIDTH, _SHORT_CONV)
        self.matrix(f"{layer}.shortconv.out_proj", _WIDTH, _WIDTH)


def _layers() -> Iterator[str]:
    return (f"blk.{index}" for index in range(_LAYERS))


# Architectures: each writes what llama.cpp's loader asks for (src/models/*.cpp)


def _describe_attention(writer: gguf.GGUFWriter, base: float, kv_heads: Sequence[int] = ()) -> None:
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(kv_heads or _KV_HEADS)
    writer.add_rope_dimension_count(_HEAD_DIM)
    writer.add_rope_freq_base(base)


def _describe_mamba(writer: gguf.GGUFWriter) -> None:
    writer.add_ssm_conv_kernel(_CONV)
    writer.add_ssm_inner_size(_INNER)
    writer.add_ssm_state_size(_STATE)
    writer.add_ssm_time_step_rank(_STEP_RANK)


def _transformer(weights: _Weights, biases: bool = False) -> None:
    for layer in _layers():
        weights.norms(f"{layer}.attn_norm")
        weights.attention(layer, biases)
        weights.feed_forward(layer)


def _llama(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    _describe_attention(writer, 10_000.0)
    _transformer(weights)


def _llama3_factors(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    """Llama 3.1 and later: slow channels are slower than the metadata says, by a tensor of factors."""
    _describe_attention(writer, 500_000.0)
    _transformer(weights)
    pairs = np.arange(_HEAD_DIM // 2, dtype=np.float32)
    weights.tensors["rope_freqs.weight"] = np.interp(pairs, (6.0, 10.0), (1.0, 8.0)).astype(np.float32)


def _qwen2(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    _describe_attention(writer, 1_000_000.0)
    _transformer(weights, biases=True)


def _qwen2vl(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    """Pairs of channels are dealt out to time, height and width of an image's patch."""
    _qwen2(writer, weights)
    writer.add_rope_dimension_sections([4, 6, 6, 0])


def _gemma3(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    _describe_attention(writer, 1_000_000.0)
    writer.add_rope_freq_base_swa(10_000.0)
    writer.add_key_length(_HEAD_DIM)
    writer.add_value_length(_HEAD_DIM)
    writer.add_sliding_window(WINDOW)
    writer.add_sliding_window_pattern([index % 2 == 0 for index in range(_LAYERS)])
    _transformer(weights)
    for layer in _layers():
        weights.head_norms(layer)
        weights.norms(f"{layer}.post_attention_norm", f"{layer}.post_ffw_norm")


def _mamba(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    writer.add_head_count(0)
    _describe_mamba(writer)
    for layer in _layers():
        weights.norms(f"{layer}.attn_norm")
        weights.mamba(layer)


def _jamba(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    """Its attention layers know no positions: their keys are not rotated."""
    attends = [index == 1 for index in range(_LAYERS)]
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv([_KV_HEADS if attention else 0 for attention in attends])
    _describe_mamba(writer)
    for layer, attention in zip(_layers(), attends, strict=True):
        weights.norms(f"{layer}.attn_norm")
        if attention:
            weights.attention(layer)
        else:
            weights.mamba(layer, norms=True)
        weights.feed_forward(layer)


def _lfm2(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    attends = [index == 1 for index in range(_LAYERS)]
    _describe_attention(writer, 1_000_000.0, [_KV_HEADS if attention else 0 for attention in attends])
    writer.add_shortconv_l_cache(_SHORT_CONV)
    for layer, attention in zip(_layers(), attends, strict=True):
        weights.norms(f"{layer}.attn_norm")
        if attention:
            weights.attention(layer)
            weights.head_norms(layer)
        else:
            weights.short_convolution(layer)
        weights.feed_forward(layer)


@dataclass(frozen=True, slots=True)
class _Kind:
    architecture: str
    write: Callable[[gguf.GGUFWriter, _Weights], None]
    template: str = CHATML
    adds_bos: bool = True
    feed_forward: int = _FEED_FORWARD
    final_norm: str = "output_norm"


_KINDS = {
    "llama": _Kind("llama", _llama),
    "qwen2": _Kind("qwen2", _qwen2, adds_bos=False),
    "llama3-factors": _Kind("llama", _llama3_factors),
    "qwen2vl": _Kind("qwen2vl", _qwen2vl, adds_bos=False),
    "gemma3": _Kind("gemma3", _gemma3, NO_SYSTEM),
    # A base model: no template.
    "mamba": _Kind("mamba", _mamba, template="", feed_forward=0),
    "jamba": _Kind("jamba", _jamba),
    "lfm2": _Kind("lfm2", _lfm2, final_norm="token_embd_norm"),
}
KINDS = tuple(_KINDS)
"""What `write_tiny_model` can write."""


def write_tiny_model(path: Path, kind: str, seed: int = 1) -> Path:
    """Write a model of one of `KINDS` to `path`, and return that."""
    what = _KINDS[kind]
    writer = gguf.GGUFWriter(path, what.architecture)
    writer.add_name(f"tiny {kind}")
    writer.add_context_length(_TRAINED_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(what.feed_forward)
    writer.add_block_count(_LAYERS)
    writer.add_layer_norm_rms_eps(1e-5)
    vocabulary = _write_vocabulary(writer, what.adds_bos)
    if what.template:
        writer.add_chat_template(what.template)
    weights = _Weights(seed)
    weights.embeddings(vocabulary, what.final_norm)
    what.write(writer, weights)
    for name, tensor in weights.tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
