from __future__ import annotations

import math

import numpy as np
import pytest

from kvd.bench.statistics import mean, mean_difference, median


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    generator = np.random.default_rng(7)
    held = 0
    for _ in range(100):
        estimate = mean(generator.normal(3.0, 1.0, 40).tolist())
        held += estimate.low <= 3.0 <= estimate.high
    assert 86 <= held <= 100


def test_a_median_is_not_moved_by_an_outlier() -> None:
    assert median([1.0, 2.0, 3.0, 4.0, 1000.0]).value == 3.0
    assert median([5.0, 5.0, 5.0]).to_json() == [5.0, 5.0, 5.0]


def test_paired_differences_are_seen_where_samples_overlap() -> None:
    base = [float(number % 17) for number in range(50)]
    shifted = [value + 0.5 + 0.1 * (index % 3) for index, value in enumerate(base)]
    estimate = mean_difference(shifted, base)
    assert estimate.low > 0.5
    assert estimate.value == pytest.approx(0.6, abs=0.01)
    same = mean_difference(base, base)
    assert (same.low, same.value, same.high) == (0, 0, 0)


def test_nothing_gives_nothing() -> None:
    assert math.isnan(mean([]).value)


def test_unequal_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        mean_difference([1.0], [1.0, 2.0])
