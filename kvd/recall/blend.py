"""Two opinions on the same chunks made one: the ranking's scores, and what a model says of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev

from kvd.types import Hit

WEIGHT = 0.05
"""What a gain that is one standard deviation above the others' mean adds to a score, the best score counting 1."""


def blended(hits: Sequence[Hit], gains: Sequence[float | None], weight: float = WEIGHT) -> list[Hit]:
    """The hits in their new order, scores on the old scale; as they are where fewer than two were judged.

    What was not judged counts as average.
    """
    known = [gain for gain in gains if gain is not None]
    spread = pstdev(known) if len(known) > 1 else 0.0
    if not spread:
        return list(hits)
    middle, best = fmean(known), max(hit.score for hit in hits)

    def score(hit: Hit, gain: float | None) -> float:
        return hit.score + (0.0 if gain is None else weight * best * (gain - middle) / spread)

    judged = [replace(hit, score=round(score(hit, gain), 4)) for hit, gain in zip(hits, gains, strict=True)]
    return sorted(judged, key=lambda hit: -hit.score)
