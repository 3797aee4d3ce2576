"""What the engine child is sent: the model to load, a question with its chunks, candidates to judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from kvd import paths
from kvd.config import Settings
from kvd.models.active import ActiveModel
from kvd.recall.embed import default_embedder, embedded_text
from kvd.service.conversations import Talk
from kvd.service.engine_keeper import LoadParams
from kvd.types import Hit
from kvd.worker.protocol import encode_vector

_FIELDS = ("path", "start_line", "end_line", "scope", "language", "text")


def load_params(settings: Settings, model: ActiveModel) -> LoadParams:
    return LoadParams(
        model_path=str(model.path),
        model_name=model.name,
        model_sha256=model.sha256,
        store_path=str(paths.store_file()),
        n_ctx=settings.n_ctx,
        parallel=settings.parallel,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
        reuse=settings.reuse,
        recompute=settings.recompute,
        short_headers=settings.short_headers,
        resident_prompts=settings.resident_prompts,
        pool_bytes=settings.pool_bytes,
        eviction=settings.eviction,
    )


def ask_params(
    question: str,
    reuse: bool,
    settings: Settings,
    hits: Sequence[Hit],
    interrupted: Callable[[], bool] = lambda: False,
    talk: Talk | None = None,
    pinned: str = "",
) -> dict[str, Any]:
    """For `ask` and `prefetch`. Once `interrupted()`, the rest of the chunks is left out. `talk`: what was said, with
    what is `pinned` ahead of it."""
    params = _params(question, reuse, settings, hits, interrupted)
    if talk is not None:
        for index, label in talk.present(hits).items():
            params["chunks"][index]["present"] = label
        params["conversation"] = talk.for_engine()
        params["pinned"] = pinned
    return params


def _params(
    question: str, reuse: bool, settings: Settings, hits: Sequence[Hit], interrupted: Callable[[], bool]
) -> dict[str, Any]:
    return {
        **_recalled(question, hits, interrupted),
        "budget": settings.budget,
        "max_tokens": settings.max_tokens,
        "reuse": reuse,
    }


def rank_params(question: str, hits: Sequence[Hit], seconds: float) -> dict[str, Any]:
    """For `rank`."""
    return {**_recalled(question, hits, lambda: False), "seconds": seconds}


def _recalled(question: str, hits: Sequence[Hit], interrupted: Callable[[], bool]) -> dict[str, Any]:
    """The question and its chunks; the vectors are for the hot pool's policy."""
    embedder = default_embedder()
    chunks = []
    for hit in takewhile(lambda _: not interrupted(), hits):
        text = embedded_text(hit.chunk.path, hit.chunk.scope, hit.chunk.text)
        vector = encode_vector(embedder.embed_documents([text])[0])
        chunks.append({**{name: getattr(hit.chunk, name) for name in _FIELDS}, "vector": vector})
    return {"question": question, "vector": encode_vector(embedder.embed_query(question)), "chunks": chunks}
