"""Medians and means with bootstrap intervals (Efron 1979), also of paired differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_RESAMPLES = 10_000
_SEED = 20_250_101

Statistic = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic of a sample and the bounds of its 95 % percentile bootstrap interval."""

    value: float
    low: float
    high: float

    def to_json(self) -> list[float]:
        return [self.value, self.low, self.high]


def _estimate(sample: Sequence[float], statistic: Statistic) -> Estimate:
    """Resamples whole questions: tokens of one answer are not independent. NaN for an empty sample."""
    values: npt.NDArray[np.float64] = np.asarray(sample, np.float64)
    if not values.size:
        return Estimate(float("nan"), float("nan"), float("nan"))
    rows = np.random.default_rng(_SEED).integers(0, values.size, (_RESAMPLES, values.size))
    low, high = np.quantile(statistic(values[rows], axis=1), (0.025, 0.975))
    return Estimate(float(statistic(values)), float(low), float(high))


def mean(sample: Sequence[float]) -> Estimate:
    return _estimate(sample, np.mean)


def median(sample: Sequence[float]) -> Estimate:
    return _estimate(sample, np.median)


def mean_difference(sample: Sequence[float], other: Sequence[float]) -> Estimate:
    """Of paired samples: how much `sample` lies above `other`."""
    return mean([value - reference for value, reference in zip(sample, other, strict=True)])
