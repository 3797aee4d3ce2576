from __future__ import annotations

import pytest

from kvd.bench.diary import slope


def test_growth_is_that_of_the_second_half() -> None:
    filling = [(request, request * 50_000) for request in range(10)]
    steady = [(request, 500_000 + 200 * request) for request in range(10, 20)]
    found = slope([*filling, *steady])
    assert found["bytes_a_request"] == pytest.approx(200)
    assert found["error"] == pytest.approx(0, abs=1e-6)
    assert (found["bytes"], found["points"]) == (500_000 + 200 * 19, 10)


def test_noise_is_in_the_error() -> None:
    noisy = [(request, 1_000_000 + (1000 if request % 2 else -1000)) for request in range(40)]
    found = slope(noisy)
    assert abs(found["bytes_a_request"]) < 1.96 * found["error"]
    assert slope(noisy[:3]) == {}
