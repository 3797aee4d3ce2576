from __future__ import annotations

import threading
from time import perf_counter

import pytest

from kvd.bench.askers import Answered, asked_by, covered, lines, summed_up


def test_overlapping_answers_count_their_time_once() -> None:
    assert covered([(3.0, 4.0), (0.0, 1.0), (0.5, 2.0), (0.6, 0.7)]) == 3.0
    assert covered([]) == 0.0


def test_what_a_round_comes_to() -> None:
    answers = [Answered(0.0, 1.0, 3.0, 21), Answered(0.0, 2.0, 5.0, 31), Answered(1.0, 4.0, 4.5, 2)]
    found = summed_up(2, 6.0, answers)
    # 20 + 30 + 1 tokens after the first ones, while somebody's answer was written from 1.0 to 5.0.
    assert (found.decoded, found.ttft, found.longest_ttft) == (51 / 4, 2.0, 3.0)


@pytest.mark.parametrize("askers", [1, 3])
def test_so_many_ask_at_once(askers: int) -> None:
    together, most, now = threading.Barrier(askers), 0, 0
    lock = threading.Lock()

    def ask(number: int) -> Answered:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        together.wait(10)
        with lock:
            now -= 1
        moment = perf_counter()
        return Answered(moment, moment, moment, 1)

    found = asked_by(askers, 6, ask)
    assert most == askers == found.askers
    assert found.decoded == 0.0


def test_the_table_compares_with_one_at_a_time_of_the_same() -> None:
    rows = [
        {"askers": askers, "seconds": seconds, "ttft": 1.0, "longest_ttft": 2.0, "decoded": decoded}
        for askers, seconds, decoded in ((1, 30.0, 10.0), (1, 34.0, 12.0), (1, 32.0, 11.0), (4, 16.0, 33.0))
    ]
    about = {
        "model": "small",
        "kvd": "1",
        "engine": "llama",
        "machine": "this one",
        "date": "2026-12-01",
        "prompt_tokens": [900, 1100],
        "max_tokens": 64,
        "cells": 4096,
    }
    text = list(lines({"about": about, "rounds": {"kvd": rows}}))
    assert text[1] == "prompts of 1,000 tokens (median), answers of up to 64, 4,096 cells"
    assert text[-2] == "| kvd | 1 | 32.0 s | 1.00x | 1.00 s | 2.00 s | 11.0 | 1.00x |"
    assert text[-1] == "| kvd | 4 | 16.0 s | 2.00x | 1.00 s | 2.00 s | 33.0 | 3.00x |"
