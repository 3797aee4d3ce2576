from __future__ import annotations

import pytest

from kvd.kv.costs import Costs, LinearCost


def test_a_line_is_learned() -> None:
    cost = LinearCost()
    for tokens in (100, 400, 250, 100):
        cost.observe(tokens, 0.5 + 0.01 * tokens)
    assert cost.predict(200) == pytest.approx(2.5)
    assert cost.predict(0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "seen", [[(100, 1.0)], [(100, 1.0), (100, 1.0)], [(100, 2.0), (300, 2.0)], [(100, 1), (200, 3)]]
)
def test_without_a_line_that_rises_it_is_proportional(seen: list[tuple[int, float]]) -> None:
    cost = LinearCost()
    for tokens, seconds in seen:
        cost.observe(tokens, seconds)
    assert cost.predict(0) == 0
    assert cost.predict(200) == pytest.approx(2 * cost.predict(100))
    assert cost.predict(100) > 0


def test_the_machine_of_now_counts_more_than_that_of_then() -> None:
    cost = LinearCost()
    for seconds in (1.0, 9.0):
        for tokens in (100, 200, 300) * 40:
            cost.observe(tokens, seconds * tokens)
    assert cost.predict(100) == pytest.approx(900, rel=0.05)


def test_loads_while_one_of_the_two_is_unknown() -> None:
    costs = Costs()
    assert costs.loading_wins(100)
    costs.load.observe(100, 9.0)
    assert costs.loading_wins(100)


def test_short_bodies_are_computed_where_loading_has_an_overhead() -> None:
    costs = Costs()
    for tokens in (50, 100, 400):
        costs.load.observe(tokens, 0.020 + tokens * 1e-5)
        costs.prefill.observe(tokens, tokens * 1e-4)
    assert not costs.loading_wins(100)
    assert costs.loading_wins(400)


def test_what_is_refused_is_tried_again_now_and_then() -> None:
    costs = Costs()
    costs.load.observe(100, 9.0)
    costs.prefill.observe(100, 1.0)
    assert [costs.loading_wins(100) for _ in range(32)].count(True) == 2
