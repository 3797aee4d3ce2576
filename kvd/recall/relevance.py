"""Whether a repository has anything to say to a question; nothing relevant is an answer too.

A question that is about something else shares a few common words with any repository. They meet in one file less
often than those of a real question, names and paths hardly have them, and no vector is near.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from math import fsum

from kvd.recall.candidates import Candidate, Gathered
from kvd.recall.scores import Weights
from kvd.recall.stems import terms

_ALL = 0.999
"""A file that says all of a question is about it, however the sum is rounded."""


def relevant(gathered: Gathered, weights: Weights) -> bool:
    """Whether any of the candidates is worth showing. What the query points at or quotes always is."""
    candidates = gathered.candidates.values()
    nearest = max((item.similarity for item in candidates), default=0.0)
    if nearest >= weights.near or any(item.lead or item.literal for item in candidates):
        return True
    together = _meeting(candidates, gathered.importance)
    if together > _ALL:
        return True
    wanted = weights.floor
    if nearest and gathered.all_embedded:
        # Without vectors, or while some are still to come, words alone have to do.
        wanted = max(wanted, weights.evidence - weights.nearness * nearest)
    return together > 0 and together + _named(candidates, gathered.importance, wanted - together) >= wanted


def _meeting(candidates: Collection[Candidate], importance: dict[str, float]) -> float:
    """The share of the question that is in one file, at most."""
    files: dict[str, set[str]] = defaultdict(set)
    for item in candidates:
        files[item.path] |= item.words
    return max((fsum(importance[word] for word in found) for found in files.values()), default=0.0)


def _named(candidates: Iterable[Candidate], importance: dict[str, float], enough: float) -> float:
    """The share of the question that names and paths of candidates have; looks no further once it is `enough`."""
    found: set[str] = set()
    share = 0.0
    for item in sorted(candidates, key=lambda item: item.bm25, reverse=True):
        if share >= enough:
            break
        if not item.words <= found:
            found |= item.words & set(terms(f"{item.scope} {' '.join(item.symbols)} {item.path}"))
            share = fsum(importance[word] for word in found)
    return share
