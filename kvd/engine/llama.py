"""One llama.cpp model and context, through the low-level API.

Only one thread may use an engine at a time. The C library can kill the process (SIGILL, GGML_ASSERT, out of
memory): an engine lives in a child process that is supervised.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from kvd.engine.machine import physical_cores
from kvd.errors import ModelError

BATCH = 512
"""Most tokens in one decode step."""
SEQUENCES = 32
"""Sequence ids of a context are 0 to 31 unless it is made with more; each costs memory for logits."""

_ALL_LAYERS = 999
_NO_DEVICES = (ctypes.c_void_p * 1)()
_NO_MEMORY = -2
"""What `llama_decode` says when it can't allocate."""
_FLASH_ATTENTION = 1
_REPEAT_PENALTY, _REPEAT_WINDOW = 1.05, 256


@dataclass(frozen=True, slots=True)
class BatchToken:
    """One token to decode: at `position` in each of `sequences`; its logits are kept when `logits` is set."""

    token: int
    position: int
    sequences: tuple[int, ...]
    logits: bool = False


def run(tokens: Sequence[int], start: int, sequence: int, logits: bool = False) -> list[BatchToken]:
    """Consecutive tokens of one sequence; `logits` asks for those of the last one."""
    last = len(tokens) - 1
    return [
        BatchToken(token, start + index, (sequence,), logits and index == last) for index, token in enumerate(tokens)
    ]


def tokenize(vocab: Any, text: str, special: bool, marks: bool) -> list[int]:
    """Tokens of `text`; `marks` puts the model's own before and after it, `special` parses those that it spells."""
    data = text.encode("utf-8", "replace")
    size = len(data) + 8
    while True:
        buffer = (llama_cpp.llama_token * size)()
        count = llama_cpp.llama_tokenize(vocab, data, len(data), buffer, size, marks, special)
        if count >= 0:
            return list(buffer[:count])
        size = -count


def load_model(path: Path, gpu_layers: int) -> Any:
    """The model, or a null pointer; with 0 layers the GPU is not touched."""
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    if not gpu_layers:
        # An empty list. Without it a GPU would still get buffers, and large batches to compute.
        params.devices = ctypes.cast(_NO_DEVICES, ctypes.c_void_p)
    return llama_cpp.llama_model_load_from_file(str(path).encode(), params)


class DoesNotFitError(ModelError):
    """llama.cpp did not get what it needs for a model, mostly memory: with less on the GPU it may."""


class LlamaEngine:
    """Raises `DoesNotFitError` when the file can't be loaded as a model that fits.

    `gpu_layers` of the model's layers, counted from the last, go on the GPU where there is one; the output counts as
    the last layer. -1: all of them; 0: the GPU is not touched. `n_ctx` cells are shared by all of `sequences`
    sequences; one of them may have `longest` tokens.
    """

    cell_type = 1
    """`enum ggml_type` of keys and values: float16. Quantized cells are rotated inside llama.cpp and their state does
    not say so."""

    def __init__(
        self, path: Path, n_ctx: int, threads: int = 0, gpu_layers: int = -1, sequences: int = SEQUENCES
    ) -> None:
        self.gpu = gpu_layers != 0 and bool(llama_cpp.llama_supports_gpu_offload())
        self._model = load_model(path, (gpu_layers if gpu_layers > 0 else _ALL_LAYERS) if self.gpu else 0)
        if not self._model:
            raise DoesNotFitError(f"llama.cpp can't load {path}", hint="kvd setup")
        self.vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.vocab_size = int(llama_cpp.llama_vocab_n_tokens(self.vocab))
        self.trained_ctx = int(llama_cpp.llama_model_n_ctx_train(self._model))
        self.n_ctx, self.sequences = n_ctx, sequences
        self.longest = min(n_ctx, self.trained_ctx or n_ctx)
        self.threads = threads or physical_cores()
        self._context = self._make_context(self.threads)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, sequences)

    def _make_context(self, threads: int) -> Any:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = self.n_ctx
        params.n_batch = params.n_ubatch = BATCH
        params.n_seq_max = self.sequences
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        params.flash_attn_type = _FLASH_ATTENTION
        params.type_k = params.type_v = self.cell_type
        params.no_perf = True
        context = llama_cpp.llama_init_from_model(self._model, params)
        if not context:
            # Whoever tries again with less needs the memory.
            llama_cpp.llama_model_free(self._model)
            raise DoesNotFitError(
                f"llama.cpp can't make a context of {self.n_ctx} cells for this model",
                hint="set a smaller n_ctx in config.toml, or choose another model with: kvd setup --model",
            )
        return context

    def close(self) -> None:
        if self._context:
            llama_cpp.llama_batch_free(self._batch)
            llama_cpp.llama_free(self._context)
            llama_cpp.llama_model_free(self._model)
            self._context = None

    # Facts about the model

    @property
    def rope_type(self) -> int:
        """`enum llama_rope_type`: -1 none, 0 norm, 2 neox, others are multi-dimensional."""
        return int(llama_cpp.llama_model_rope_type(self._model))

    @property
    def is_plain_attention(self) -> bool:
        """Neither recurrent nor hybrid, no encoder, no sliding window: every cell is a token's K and V."""
        return not (
            llama_cpp.llama_model_is_recurrent(self._model)
            or llama_cpp.llama_model_is_hybrid(self._model)
            or llama_cpp.llama_model_has_encoder(self._model)
            or llama_cpp.llama_model_n_swa(self._model) > 0
        )

    @property
    def has_decoder(self) -> bool:
        return bool(llama_cpp.llama_model_has_decoder(self._model))

    def metadata(self, key: str) -> str | None:
        """A value of the GGUF's metadata as text; None when it has no such key."""
        size = 1 << 10
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = llama_cpp.llama_model_meta_val_str(self._model, key.encode(), buffer, size)
            if length < 0:
                return None
            if length < size:
                return buffer.value.decode("utf-8", "replace")
            size = length + 1

    # Tokens

    def tokenize(self, text: str, special: bool = False, bos: bool = False) -> list[int]:
        """`special` parses the likes of `<|im_end|>`: never set it for text that comes from a repository."""
        return tokenize(self.vocab, text, special, bos)

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; special tokens stand for nothing."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, size, 0, False)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def special_text(self, token: int) -> str:
        """The text of a special token such as the begin-of-sequence one; "" for none."""
        if token < 0:
            return ""
        return bytes(llama_cpp.llama_vocab_get_text(self.vocab, token)).decode("utf-8", "replace")

    @property
    def bos(self) -> int:
        return int(llama_cpp.llama_vocab_bos(self.vocab))

    @property
    def eos(self) -> int:
        return int(llama_cpp.llama_vocab_eos(self.vocab))

    @property
    def adds_bos(self) -> bool:
        return bool(llama_cpp.llama_vocab_get_add_bos(self.vocab))

    def ends_answer(self, token: int) -> bool:
        return bool(llama_cpp.llama_vocab_is_eog(self.vocab, token))

    # Decoding

    def decode(self, tokens: Sequence[BatchToken]) -> None:
        """Compute up to `BATCH` tokens in one step. Raises `ModelError`; the cells are then as before it."""
        if len(tokens) > BATCH:
            # The arrays below are of that length; writing past them would be silent.
            raise ValueError(f"a batch of {len(tokens)} tokens")
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, item in enumerate(tokens):
            batch.token[index] = item.token
            batch.pos[index] = item.position
            batch.n_seq_id[index] = len(item.sequences)
            for slot, sequence in enumerate(item.sequences):
                batch.seq_id[index][slot] = sequence
            batch.logits[index] = item.logits
        status = llama_cpp.llama_decode(self._context, batch)
        if status == 1:
            raise ModelError("no room in the model's context", hint="set a larger n_ctx in config.toml")
        if status == _NO_MEMORY:
            raise DoesNotFitError("llama.cpp has no memory left to compute", hint="set a smaller n_ctx in config.toml")
        if status != 0:
            raise ModelError(f"llama_decode failed ({status})", hint="kvd logs")

    def logits(self, index: int) -> npt.NDArray[np.float32]:
        """`[vocab_size]`, a copy: the logits of the `index`-th token of the last decoded batch."""
        pointer = llama_cpp.llama_get_logits_ith(self._context, index)
        return np.ctypeslib.as_array(pointer, (self.vocab_size,)).copy()

    def new_sampler(self, grammar: str = "") -> Any:
        """Chooses the tokens of one answer: the likeliest ones, repetitions damped. To be freed by `free_sampler`.

        With a `grammar` (GBNF) the likeliest that it allows; when it is at its end, nothing but the model's end tokens,
        and llama.cpp aborts if there are none. Raises `ValueError` for what is no grammar.
        """
        if grammar:
            return self._grammar_sampler(grammar)
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        penalties = llama_cpp.llama_sampler_init_penalties(self.vocab_size, _REPEAT_WINDOW, _REPEAT_PENALTY, 0.0, 0.0)
        llama_cpp.llama_sampler_chain_add(chain, penalties)
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
        return chain

    def _grammar_sampler(self, grammar: str) -> Any:
        sampler = llama_cpp.llama_sampler_init_grammar(self.vocab, grammar.encode(), b"root")
        if not sampler:
            raise ValueError("llama.cpp does not take this grammar")
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        for part in (sampler, llama_cpp.llama_sampler_init_greedy()):
            llama_cpp.llama_sampler_chain_add(chain, part)
        return chain

    def free_sampler(self, sampler: Any) -> None:
        llama_cpp.llama_sampler_free(sampler)

    def sample(self, sampler: Any, index: int) -> int:
        """The next token after the `index`-th of the last batch."""
        return int(llama_cpp.llama_sampler_sample(sampler, self._context, index))

    # Sequences

    def remove(self, sequence: int, start: int = 0, end: int = -1) -> None:
        """Take the sequence out of its cells from position `start` (to before `end`)."""
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, start, end)

    def share(self, source: int, target: int, start: int = 0, end: int = -1) -> None:
        """Put `target` into the cells of `source` in that range of positions; nothing is copied."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, start, end)

    def last_position(self, sequence: int) -> int:
        """-1 for a sequence without cells."""
        return int(llama_cpp.llama_memory_seq_pos_max(self._memory, sequence))

    def clear(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self.remove(sequence)

    def state_bytes(self, sequence: int) -> int:
        """Bytes of what `get_state` gives: the cells' keys and values, and a little that describes them."""
        return int(llama_cpp.llama_state_seq_get_size(self._context, sequence))

    def get_state(self, sequence: int) -> npt.NDArray[np.uint8]:
        """The sequence's cells as llama.cpp writes them (see `kvd.engine.state`)."""
        size = self.state_bytes(sequence)
        blob = np.empty(size, np.uint8)
        written = llama_cpp.llama_state_seq_get_data(self._context, _pointer(blob), size, sequence)
        return blob[: int(written)]

    def set_state(self, sequence: int, blob: npt.NDArray[np.uint8]) -> bool:
        """Replace the sequence's cells; False (and no cells) when llama.cpp refuses the bytes."""
        used = llama_cpp.llama_state_seq_set_data(self._context, _pointer(blob), blob.size, sequence)
        if int(used) == blob.size:
            return True
        # A refused state can leave cells behind.
        self.remove(sequence)
        return False


def _pointer(blob: npt.NDArray[np.uint8]) -> Any:
    return blob.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
