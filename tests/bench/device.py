"""What a GPU is worth on KV's way into the cells: cuda against cpu. `device.sh` runs it where there is a GPU.

    dequantize+rotate   blocks, decompressed before, to float16, and their keys to where a prompt has them
    pool to state       from the pool's pages, keys rotated, into a state in host memory: all that a hot prompt takes
                        before llama.cpp gets it; from a GPU to ordinary and to pinned memory
    restore             llama.cpp takes that state into its cells (a model of that shape with hardly any weights)

Content is random: no step's time depends on it. One line of JSON for each figure, then a table.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from kvd.engine.state import StateBuffer, state_bytes
from kvd.kv.codec import BLOCK_TOKENS, Payload, encode, open_frame
from kvd.kv.pool import PAGE_TOKENS, HotPool, pages_for
from kvd.kv.rope import Rotation
from kvd.kv.rows import Rows, host_memory
from kvd.types import KVShape, Rope

HEAD_DIM = 128
SHAPES = {"1.5B": KVShape(28, 256), "7B": KVShape(28, 512)}
"""Of Qwen2.5's models."""
TOKENS = (2_000, 16_000)
ROUNDS = 7
_DISTINCT = 8
"""Different blocks, given again and again: encoding is not what is measured."""

Figure = dict[str, Any]


class Bench:
    """One shape and number of tokens on one device."""

    def __init__(self, shape: KVShape, tokens: int, device: torch.device, rounds: int = ROUNDS) -> None:
        self._shape, self._device, self._rounds = shape, device, rounds
        self._positions = list(range(500, 500 + tokens))
        frequencies = tuple(1_000_000.0 ** (-2 * pair / HEAD_DIM) for pair in range(HEAD_DIM // 2))
        self._rotation = Rotation(Rope("neox", HEAD_DIM, HEAD_DIM, frequencies), device)
        self._payloads = list(payloads(shape, tokens))

    def figures(self) -> Iterator[Figure]:
        yield self._timed("dequantize+rotate", "", self._dequantize_and_rotate)
        rows = self._pooled()
        for pinned in (False, True) if self._device.type == "cuda" else (False,):
            memory = host_memory(state_bytes(self._shape, len(self._positions)), pinned)
            memory.fill(0)
            buffer = StateBuffer(self._shape, self._positions, 0, memory)

            def write(buffer: StateBuffer = buffer) -> None:
                rows.write(self._rotation, self._positions, buffer.layers())

            yield self._timed("pool to state", "pinned" if pinned else "ordinary", write)

    def _dequantize_and_rotate(self) -> None:
        start = 0
        for payload in self._payloads:
            kv = payload.dequantized(self._device)
            end = start + len(payload.tokens)
            angles = self._rotation.angles(torch.tensor(self._positions[start:end]))
            moved = torch.empty_like(kv[0, 0])
            for layer in range(self._shape.n_layer):
                self._rotation.rotate(kv[layer, 0], angles, moved)
            start = end

    def _pooled(self) -> Rows:
        pages = sum(pages_for(len(payload.tokens)) for payload in self._payloads)
        pool = HotPool(self._shape, pages * PAGE_TOKENS * self._shape.bytes_per_token, self._device)
        return pool.rows(
            [
                pool.put(index.to_bytes(4), payload.tokens, payload.dequantized(self._device))
                for index, payload in enumerate(self._payloads)
            ]
        )

    def _timed(self, what: str, memory: str, work: Callable[[], object]) -> Figure:
        def finish() -> None:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)

        return {"what": what, "device": self._device.type, "memory": memory, **timed(work, finish, self._rounds)}


def payloads(shape: KVShape, tokens: int) -> Iterator[Payload]:
    """Blocks that cover so many tokens, each in memory of its own."""
    generator = torch.Generator().manual_seed(tokens)
    frames: dict[tuple[int, int], bytes] = {}
    for index, start in enumerate(range(0, tokens, BLOCK_TOKENS)):
        count = min(BLOCK_TOKENS, tokens - start)
        which = (index % _DISTINCT, count)
        if which not in frames:
            kv = torch.randn((shape.n_layer, 2, count, shape.width), generator=generator)
            frames[which] = encode(range(count), kv.half())
        yield open_frame(frames[which], shape)


def timed(work: Callable[[], object], finish: Callable[[], None], rounds: int) -> Figure:
    """Median and best of some rounds after one that does not count; `finish` waits for what `work` began."""
    seconds = []
    for _ in range(rounds + 1):
        finish()
        started = perf_counter()
        work()
        finish()
        seconds.append(perf_counter() - started)
    counted = seconds[1:]
    return {
        "median_ms": round(statistics.median(counted) * 1000, 3),
        "best_ms": round(min(counted) * 1000, 3),
        "rounds": rounds,
    }


def restores(shape: KVShape, tokens: int, rounds: int = ROUNDS) -> Iterator[Figure]:
    """A state of so many cells into llama.cpp; nothing, with a word, where it or what writes its models is missing."""
    if missing := [name for name in ("llama_cpp", "gguf") if importlib.util.find_spec(name) is None]:
        yield {"what": "restore", "skipped": f"{' and '.join(missing)} can't be imported here"}
        return
    from kvd.engine.llama import LlamaEngine

    with tempfile.TemporaryDirectory() as folder:
        engine = LlamaEngine(write_model(Path(folder) / "thin.gguf", shape, tokens), tokens)
        try:
            memory = host_memory(state_bytes(shape, tokens), engine.gpu and torch.cuda.is_available())
            memory.fill(0)
            buffer = StateBuffer(shape, range(tokens), 0, memory)

            def restore() -> None:
                if not engine.set_state(0, buffer.blob):
                    raise RuntimeError("llama.cpp refuses the state")

            where = "gpu" if engine.gpu else "cpu"
            yield {"what": "restore", "device": where, "memory": "", **timed(restore, lambda: None, rounds)}
        finally:
            engine.close()


def write_model(path: Path, shape: KVShape, context: int) -> Path:
    """A model with cells of that shape and next to no weights: all zeros, and no words."""
    import gguf
    import numpy as np

    embedding, vocabulary, heads = 64, 32, shape.width // HEAD_DIM
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(embedding)
    writer.add_feed_forward_length(embedding)
    writer.add_block_count(shape.n_layer)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(f"{name}.weight", np.zeros((rows, columns), np.float16))

    matrix("token_embd", vocabulary, embedding)
    matrix("output", vocabulary, embedding)
    writer.add_tensor("output_norm.weight", np.ones(embedding, np.float32))
    for layer in range(shape.n_layer):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(embedding, np.float32))
        for name in ("attn_q", "attn_k", "attn_v"):
            matrix(f"blk.{layer}.{name}", shape.width, embedding)
        matrix(f"blk.{layer}.attn_output", embedding, shape.width)
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            matrix(f"blk.{layer}.{name}", embedding, embedding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def machine(devices: Sequence[str]) -> Figure:
    gpu = torch.cuda.get_device_name() if "cuda" in devices else ""
    about = {"torch": torch.__version__, "threads": torch.get_num_threads(), "cpus": os.cpu_count()}
    return {"what": "machine", "gpu": gpu, "processor": platform.machine(), **about}


def measure(
    devices: Sequence[str], shapes: dict[str, KVShape], tokens: Sequence[int], rounds: int = ROUNDS
) -> Iterator[Figure]:
    """Every figure, as it comes."""
    yield machine(devices)
    for name, shape in shapes.items():
        for count in tokens:
            about = {"model": name, "tokens": count, "bytes": count * shape.bytes_per_token}
            for device in devices:
                for figure in Bench(shape, count, torch.device(device), rounds).figures():
                    yield {**about, **figure}
            for figure in restores(shape, count, rounds):
                yield {**about, **figure}


def table(figures: Sequence[Figure]) -> list[str]:
    """A line for each figure: what, where, which model, tokens, milliseconds, GB/s of float16."""
    lines = [f"{'step':18} {'device':6} {'state in':9} {'model':6} {'tokens':>7} {'median ms':>10} {'GB/s':>7}"]
    for figure in figures:
        if "median_ms" in figure:
            speed = figure["bytes"] / figure["median_ms"] / 1e6
            lines.append(
                f"{figure['what']:18} {figure['device']:6} {figure['memory']:9} {figure['model']:6} "
                f"{figure['tokens']:7,} {figure['median_ms']:10,.1f} {speed:7.1f}"
            )
    return lines


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="KV's way into the cells, on cuda against cpu")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: without a GPU to compare with")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("device.py: torch sees no GPU here; with --device cpu it measures the CPU alone", file=sys.stderr)
        return 2
    devices = ("cuda", "cpu") if options.device == "cuda" else ("cpu",)
    figures = []
    for figure in measure(devices, SHAPES, options.tokens, options.rounds):
        figures.append(figure)
        print(json.dumps(figure), flush=True)
    print(*table(figures), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
