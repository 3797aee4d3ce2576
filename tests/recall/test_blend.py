"""The ranking's scores and the model's gains, made one."""

from __future__ import annotations

import pytest

from kvd.recall.blend import blended
from kvd.types import Chunk, Hit


def hits(*scores: float) -> list[Hit]:
    return [Hit(Chunk(f"{n}.py", "python", "", 1, 1, 0, 1, "x"), score) for n, score in enumerate(scores)]


def order(found: list[Hit]) -> list[str]:
    return [hit.chunk.path for hit in found]


def test_a_clear_gain_lifts_a_chunk() -> None:
    assert order(blended(hits(1.0, 0.98, 0.5), [0.0, 3.0, 0.0])) == ["1.py", "0.py", "2.py"]
    assert order(blended(hits(1.0, 0.98, 0.5), [0.0, 0.0, 3.0])) == ["0.py", "1.py", "2.py"]


def test_only_differences_count_and_scores_stay_on_their_scale() -> None:
    found = blended(hits(4.0, 3.9), [1.0, 2.0], weight=0.5)
    assert [(hit.chunk.path, hit.score) for hit in found] == [("1.py", 5.9), ("0.py", 2.0)]
    assert [hit.score for hit in blended(hits(4.0, 3.9), [101.0, 102.0], weight=0.5)] == [5.9, 2.0]


def test_what_was_not_judged_counts_as_average() -> None:
    found = blended(hits(1.0, 1.0, 1.0), [0.0, None, 2.0])
    assert order(found) == ["2.py", "1.py", "0.py"]
    assert found[1].score == 1.0


@pytest.mark.parametrize("gains", [[None, None], [1.0, None], [1.0, 1.0]])
def test_without_a_difference_all_stays_as_it_is(gains: list[float | None]) -> None:
    assert blended(hits(0.5, 0.9), gains) == hits(0.5, 0.9)
