"""What the real small model makes of candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from kvd.engine.llama import SEQUENCES, run
from kvd.errors import CancelledError
from kvd.worker.answerer import Question
from kvd.worker.decoding import LIVE, PREFIX
from kvd.worker.gate import log_softmax
from kvd.worker.prompt import Piece
from kvd.worker.rerank import CUE, Candidates, Judged, Reranker
from kvd.worker.reuse import Reuse

from .conftest import SOURCES, Rig, Rigs, with_prefix_alone

QUESTIONS = {
    "src/auth.py": "where is a password compared with its hash",
    "src/session.py": "how does the session cookie get set",
    "src/retry.py": "retrying with exponential pauses",
}
EVER = 1e6
NOISE = 0.3
"""Nats: what the place among other cells changes with this small model, as sums in float16 have another order."""


def reuse_of(rig: Rig) -> Reuse:
    assert rig.answerer.reuse is not None
    return rig.answerer.reuse


def judge(rig: Rig, question: str, pieces: Sequence[Piece] | None = None, seconds: float = EVER) -> Judged:
    reranker = Reranker(rig.answerer, reuse_of(rig))
    return reranker.judge(Candidates(question, pieces or rig.pieces(), seconds), rig.listener())


def certain(judged: Judged) -> list[float]:
    gains = [gain for gain in judged.gains if gain is not None]
    assert len(gains) == len(judged.gains)
    return gains


@pytest.mark.parametrize("path", QUESTIONS)
def test_the_code_that_a_question_is_about_makes_it_likeliest(rigs: Rigs, path: str) -> None:
    gains = certain(judge(rigs(), QUESTIONS[path]))
    assert max(zip(gains, SOURCES, strict=True)) == (max(gains), path)
    assert max(gains) > 0.2


def test_a_gain_is_that_of_a_prompt_computed_whole(rigs: Rigs) -> None:
    rig = rigs()
    question = QUESTIONS["src/auth.py"]
    engine, prompts = rig.answerer.engine, rig.answerer.prompts
    asked = engine.tokenize(f" {question}")

    def likely(code: list[int]) -> float:
        tail = [*code, *engine.tokenize(CUE), *asked]
        engine.share(PREFIX, LIVE)
        batch = [dataclasses.replace(token, logits=True) for token in run(tail, len(prompts.prefix), LIVE)]
        engine.decode(batch)
        first = len(tail) - len(asked) - 1
        rows = np.stack([engine.logits(first + place) for place in range(len(asked))])
        engine.clear([LIVE])
        return float(log_softmax(rows)[np.arange(len(asked)), asked].mean())

    without = likely([])
    whole = [likely([*prompts.header(1, piece), *piece.body]) - without for piece in rig.pieces()]
    with_prefix_alone(engine, prompts)
    # What a header without the file's name, 4-bit codes and other batches change.
    assert certain(judge(rig, question)) == pytest.approx(whole, abs=NOISE)


def test_kv_is_made_once_and_serves_the_answer(rigs: Rigs) -> None:
    rig = rigs()
    first = judge(rig, QUESTIONS["src/auth.py"])
    again = judge(rig, QUESTIONS["src/auth.py"])
    assert (first.computed, again.computed) == (3, 0)
    assert certain(again) == pytest.approx(certain(first), abs=1e-3)
    assert {block.key for block in rig.written} == set(
        rig.store.get([b.key for b in rig.written], rig.written[0].fingerprint)
    )
    answered = rig.answerer.answer(Question("How is a password checked?", rig.pieces(), 600, 4), rig.listener())
    assert answered["tokens"]["prefilled"] == 0


def test_many_candidates_are_judged_in_groups_as_alone(rigs: Rigs) -> None:
    rig = rigs()
    copies = [dataclasses.replace(piece, index=3 * n + piece.index) for n in range(4) for piece in rig.pieces()]
    gains = certain(judge(rig, QUESTIONS["src/retry.py"], copies))
    alone = certain(judge(rig, QUESTIONS["src/retry.py"]))
    assert gains == pytest.approx(alone * 4, abs=NOISE)


def test_without_time_nothing_is_computed_and_nothing_judged(rigs: Rigs) -> None:
    rig = rigs()
    rig.pager.costs.prefill.observe(100, 1.0)
    assert judge(rig, QUESTIONS["src/auth.py"], seconds=0.0) == Judged([None] * 3, 0)
    assert rig.written == []


def test_what_has_kv_is_judged_where_there_is_no_time_to_make_more(rigs: Rigs) -> None:
    rig = rigs()
    pieces = rig.pieces()
    judge(rig, QUESTIONS["src/auth.py"], pieces[:2])
    rig.pager.costs.prefill = type(rig.pager.costs.prefill)()
    # A body of 50 tokens would take a day; heads and tails are known to be quicker.
    rig.pager.costs.prefill.observe(50, 86_400.0)
    reranker = Reranker(rig.answerer, reuse_of(rig))
    reranker.cost.observe(50, 0.01)
    judged = reranker.judge(Candidates(QUESTIONS["src/auth.py"], pieces, 60.0), rig.listener())
    assert [gain is not None for gain in judged.gains] == [True, True, False]


def test_resident_prompts_stay(rigs: Rigs) -> None:
    rig = rigs(residents=4)
    question = Question("How is a password checked?", rig.pieces("src/auth.py"), 600, 4)
    rig.answerer.answer(question, rig.listener())
    judge(rig, QUESTIONS["src/auth.py"])
    rig.answerer.resident.check_integrity()
    tokens = rig.answerer.answer(question, rig.listener())["tokens"]
    assert tokens["resident"] == tokens["recalled"] > 0


def test_a_cancelled_judgement_leaves_nothing(rigs: Rigs) -> None:
    rig = rigs()
    judge(rig, QUESTIONS["src/auth.py"])

    def stop() -> None:
        raise CancelledError("cancelled")

    listener = dataclasses.replace(rig.listener(), step=stop)
    with pytest.raises(CancelledError):
        Reranker(rig.answerer, reuse_of(rig)).judge(Candidates(QUESTIONS["src/auth.py"], rig.pieces(), EVER), listener)
    engine = rig.answerer.engine
    assert all(engine.last_position(sequence) == -1 for sequence in range(SEQUENCES) if sequence != PREFIX)
    rig.pool.check_integrity()
    assert not any(block.pins for block in rig.pool.blocks())


def test_a_pool_too_small_for_the_candidates_judges_none(rigs: Rigs) -> None:
    rig = rigs(pool_bytes=128 * rigs.movable.shape.bytes_per_token)
    assert judge(rig, QUESTIONS["src/auth.py"]).gains == [None] * 3
    rig.pool.check_integrity()
