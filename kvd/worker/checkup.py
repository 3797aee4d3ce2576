"""`python -m kvd.worker.checkup PART`: what a piece of native code says of itself, as one JSON object.

A program of its own for each part, because it may die of what it tries: its end is the finding then.

    torch            {"version", "gpu": name of the GPU that torch computes on, or ""}
    llama            {"version", "features": [what ggml's CPU code was built to use], "gpu": whether it can use one}
    model PATH       {"load_ms", "token_ms", "n_ctx", "weights_bytes", "cells_bytes", "pool_bytes", "placement"}
    embedder MODEL   {"dimension"}; MODEL is what the embedding child is told to load, in JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

from kvd.config import load_settings
from kvd.engine.machine import wait_briefly
from kvd.errors import KvdError

_CELLS = 256
"""Of the context in which a model is tried: the daemon may have one of full size beside it."""
_PROMPT = "def main():"


def main() -> int:
    """The exit status; a fault that has words for people is `{"error": ...}`."""
    wait_briefly()
    part, *arguments = sys.argv[1:]
    parts: dict[str, Callable[..., dict[str, Any]]] = {"torch": _torch, "llama": _llama, "model": _model}
    parts["embedder"] = _embedder
    try:
        found = parts[part](*arguments)
    except KvdError as error:
        found = {"error": error.to_json()}
    print(json.dumps(found))
    return 0


def _torch() -> dict[str, Any]:
    import torch

    # A build for another CPU fails at the first multiplication, not before.
    torch.ones(64, 64) @ torch.ones(64, 64)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return {"version": torch.__version__, "gpu": gpu}


def _llama() -> dict[str, Any]:
    import llama_cpp

    llama_cpp.llama_backend_init()
    words = llama_cpp.llama_print_system_info().decode("utf-8", "replace").replace("|", " ").replace(":", " ").split()
    features = [
        name for name, equals, value in zip(words, words[1:], words[2:], strict=False) if equals == "=" and value == "1"
    ]
    gpu = bool(llama_cpp.llama_supports_gpu_offload())
    return {"version": version("llama-cpp-python"), "features": features, "gpu": gpu}


def _embedder(model: str) -> dict[str, Any]:
    from kvd.worker.embedding import load_engine

    engine = load_engine({**json.loads(model), "threads": load_settings().threads})
    return {"dimension": engine.embed([_PROMPT]).shape[1]}


def _model(path: str) -> dict[str, Any]:
    from kvd.engine.header import read_size
    from kvd.engine.llama import LlamaEngine, run
    from kvd.engine.log import quiet_llama_log
    from kvd.kv.pool import pool_bytes_for
    from kvd.worker.loading import planned, shape_of

    quiet_llama_log()
    settings = load_settings()
    size = read_size(Path(path))
    started = perf_counter()
    # On the CPU alone, which every prompt needs: on a GPU the daemon's own may leave no room.
    engine = LlamaEngine(Path(path), _CELLS, settings.threads, gpu_layers=0)
    loaded = perf_counter()
    tokens = engine.tokenize(_PROMPT)
    engine.decode(run(tokens, 0, 0, logits=True))
    ended = perf_counter()
    n_ctx = settings.n_ctx
    shape = shape_of(size)
    placement = planned(Path(path), n_ctx, settings.pool_bytes if settings.reuse else None, settings.gpu_layers)
    return {
        "load_ms": round((loaded - started) * 1000, 1),
        "token_ms": round((ended - loaded) * 1000 / len(tokens), 1),
        "n_ctx": n_ctx,
        "weights_bytes": sum(size.blocks) + size.output,
        "cells_bytes": n_ctx * shape.bytes_per_token,
        "pool_bytes": pool_bytes_for(shape, n_ctx, settings.pool_bytes) if settings.reuse and shape.width else 0,
        "placement": placement.to_json(),
    }


if __name__ == "__main__":
    sys.exit(main())
