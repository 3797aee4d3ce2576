"""llama.cpp's own answer to the same need: the state of one exact prompt, saved to a file and restored."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import llama_cpp

from kvd.bench.disk import drop_page_cache
from kvd.bench.lab import Lab, Outcome, Prompt, Reference, outcome, read_out
from kvd.config import Settings
from kvd.engine.llama import LlamaEngine
from kvd.errors import ModelError
from kvd.models.active import ActiveModel
from kvd.worker.decoding import LIVE, decode_run

CELLS = {"f16": 1, "q4_0": 2}
"""Kinds of cells by their number in `enum ggml_type`."""


class PeerEngine(LlamaEngine):
    """An engine with cells of another kind, which keeps sequences in files."""

    def __init__(self, model: ActiveModel, settings: Settings, cells: str) -> None:
        self.cell_type = CELLS[cells]
        super().__init__(model.path, settings.n_ctx, settings.threads, settings.gpu_layers)

    def save(self, sequence: int, file: Path) -> None:
        if not llama_cpp.llama_state_seq_save_file(self._context, str(file).encode(), sequence, None, 0):
            raise ModelError(f"llama.cpp can't save a state to {file}")

    def restore(self, sequence: int, file: Path) -> None:
        # Without room for token ids, of which the file has none, llama.cpp reads it and restores nothing.
        tokens, count = (llama_cpp.llama_token * 1)(), ctypes.c_size_t()
        llama_cpp.llama_state_seq_load_file(self._context, str(file).encode(), sequence, tokens, 1, ctypes.byref(count))
        if self.last_position(sequence) < 0:
            raise ModelError(f"llama.cpp can't restore {file}")


@dataclass(frozen=True, slots=True)
class Restored:
    """`cold_ms`, `hot_ms`: from the file to the first token with and without the page cache dropped."""

    cells: str
    bytes_per_token: float
    cold_ms: float
    hot_ms: float
    outcome: Outcome


def restored(model: ActiveModel, lab: Lab, cells: str, prompt: Prompt, reference: Reference, folder: Path) -> Restored:
    """Save the state of the whole prompt but its last token, and answer from the file."""
    file = folder / f"state-{cells}.bin"
    tokens = [*lab.prompts.prefix, *prompt.chunks, *prompt.ending]
    engine = PeerEngine(model, lab.settings, cells)
    try:
        decode_run(engine, tokens[:-1], 0, LIVE, lambda: None)
        engine.save(LIVE, file)
        times = []
        for cold in (True, False):
            engine.clear((LIVE,))
            if cold:
                drop_page_cache(file)
            started = perf_counter()
            engine.restore(LIVE, file)
            index = decode_run(engine, tokens[-1:], len(tokens) - 1, LIVE, lambda: None, logits=True)
            engine.logits(index)
            times.append((perf_counter() - started) * 1000)
            engine.remove(LIVE, len(tokens) - 1)
        rows, nll = read_out(engine, prompt, tokens[-1:], len(tokens) - 1, reference.answer)
        size = file.stat().st_size / (len(tokens) - 1)
        return Restored(cells, size, times[0], times[1], outcome(reference, rows, nll, 0.0, 0.0))
    finally:
        file.unlink(missing_ok=True)
        engine.close()
