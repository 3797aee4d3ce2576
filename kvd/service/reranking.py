"""Recalled chunks put in the order that the ranking and the loaded model find together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvd.config import Settings
from kvd.errors import ModelError
from kvd.models.active import ActiveModel
from kvd.recall.blend import blended
from kvd.service.engine import EngineClient
from kvd.service.engine_params import load_params, rank_params
from kvd.types import Hit

_log = logging.getLogger(__name__)

CANDIDATES = 10
"""Chunks that the model is asked about."""
ON_DEMAND_MS = 10_000
"""For who asks for it; for everybody else it is the setting `rerank_ms`."""


@dataclass(frozen=True, slots=True)
class Reranked:
    """`judged` is how many chunks the model had time for; `ms` what it took, `model_load_ms` not counted."""

    hits: list[Hit]
    judged: int = 0
    ms: float = 0.0
    model_load_ms: float = 0.0


async def rerank(
    engine: EngineClient,
    model: ActiveModel,
    question: str,
    hits: Sequence[Hit],
    settings: Settings,
    milliseconds: int,
    on_event: Callable[[str, dict[str, Any]], None],
) -> Reranked:
    """Ask the model about the first hits, for so long at most; what comes after them stays where it is."""
    first, rest = hits[:CANDIDATES], hits[CANDIDATES:]
    if len(first) < 2 or not settings.reuse:
        return Reranked(list(hits))
    started = time.monotonic()
    params = await asyncio.to_thread(rank_params, question, first, milliseconds / 1000)
    try:
        answer = await engine.rank(load_params(settings, model), params, on_event)
    except ModelError as error:
        # The ranking is an answer without it.
        _log.warning("chunks were not judged: %s", error.message)
        return Reranked(list(hits))
    gains = answer.result["gains"]
    ms = (time.monotonic() - started) * 1000 - answer.model_load_ms
    judged = sum(gain is not None for gain in gains)
    return Reranked([*blended(first, gains), *rest], judged, ms, answer.model_load_ms)
