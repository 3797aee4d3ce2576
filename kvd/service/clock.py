"""How long a question takes, from its arrival on."""

from __future__ import annotations

import time
from typing import Any

from kvd.service.reranking import Reranked


class Clock:
    """Times of one question in milliseconds; made when the chunks are ranked."""

    def __init__(self, received: float) -> None:
        self._received = received
        self._recall = self._elapsed()
        self._first_token: float | None = None

    def _elapsed(self) -> float:
        return (time.monotonic() - self._received) * 1000

    def token(self) -> None:
        if self._first_token is None:
            self._first_token = self._elapsed()

    def timings(
        self, ranked: Reranked, model_load: float = 0.0, result: dict[str, Any] | None = None
    ) -> dict[str, float]:
        """`ttft` counts from the request's arrival but leaves out the loading of the model."""
        model_load += ranked.model_load_ms
        total = self._elapsed()
        first = total if self._first_token is None else self._first_token
        load = float((result or {}).get("timings_ms", {}).get("load", 0.0))
        times = {
            "recall": self._recall,
            "rerank": ranked.ms,
            "load": load,
            "ttft": first - model_load,
            "total": total,
            "model_load": model_load,
        }
        return {name: round(value, 1) for name, value in times.items()}
