from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from kvd.engine.llama import LlamaEngine
from kvd.kv.codec import DEFAULT, INT8
from kvd.kv.rope import Rotation
from kvd.types import Rope
from kvd.worker.decoding import LIVE, PREFIX
from kvd.worker.gate import (
    CANDIDATES,
    LEAST_TOP1,
    MOST_KL,
    Figures,
    Gate,
    Verdict,
    divergence,
    forced_logits,
    gate_key,
    greedy,
    verdict_from_json,
)
from kvd.worker.probe import Movable
from kvd.worker.prompt import PromptBuilder
from kvd.worker.reuse import Reuse

from .conftest import SHA256, QuickGate, a_reuse, with_prefix_alone


@pytest.fixture
def gate(engine: LlamaEngine, prompts: PromptBuilder) -> Gate:
    with_prefix_alone(engine, prompts)
    return QuickGate(engine, prompts, lambda: None)


def test_the_small_model_may_reuse(verdict: Verdict, engine: LlamaEngine, prompts: PromptBuilder) -> None:
    assert (verdict.reuse, verdict.reason) == ("on", "")
    assert verdict.recompute in CANDIDATES
    assert verdict.figures is not None
    assert 0 < verdict.figures.kl <= MOST_KL
    assert LEAST_TOP1 <= verdict.figures.top1 < 1
    assert verdict.figures.tokens > 50
    assert verdict.key == gate_key(SHA256, prompts, DEFAULT.id)


def test_keys_turned_to_wrong_places_do_not_pass(
    gate: Gate, engine: LlamaEngine, prompts: PromptBuilder, movable: Movable
) -> None:
    reuse = a_reuse(engine, prompts, movable)
    rope = movable.rope
    wrong = Rope(rope.pairing, rope.head_dim, rope.n_rot, tuple(3 * frequency for frequency in rope.frequencies))
    reuse._rotation = _BackOnly(Rotation(rope), Rotation(wrong))  # type: ignore[assignment]  # a fault put in on purpose
    verdict = gate.check(reuse, "key")
    assert verdict.reuse == "prefix-only"
    assert verdict.reason.startswith("answers from reused KV differ too much (KL ")
    assert verdict.figures is not None
    assert not verdict.figures.passes
    assert [engine.last_position(sequence) for sequence in range(1, 32)] == [-1] * 31


class _BackOnly:
    """Takes keys back to position 0 rightly, and to other places wrongly."""

    def __init__(self, right: Rotation, wrong: Rotation) -> None:
        self._right, self._wrong = right, wrong
        self.rotate = right.rotate

    def angles(self, positions: object) -> object:
        return (self._right if positions.min() < 0 else self._wrong).angles(positions)  # type: ignore[attr-defined, arg-type]  # a tensor


def test_a_state_that_llama_cpp_refuses_does_not_pass(
    gate: Gate, engine: LlamaEngine, prompts: PromptBuilder, movable: Movable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reuse, "set_bodies", lambda self, placed, *others: False)
    assert gate.check(a_reuse(engine, prompts, movable), "key").reuse == "prefix-only"


def test_a_prefix_that_is_not_seen_is_off(gate: Gate, engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gate.prefix_verdict() == "prefix-only"
    monkeypatch.setattr(engine, "share", lambda source, target, start=0, end=-1: None)
    assert gate.prefix_verdict() == "off"


def test_the_key_names_all_that_a_verdict_depends_on(engine: LlamaEngine, prompts: PromptBuilder) -> None:
    keys = {
        gate_key(SHA256, prompts, DEFAULT.id),
        gate_key("1" * 64, prompts, DEFAULT.id),
        gate_key(SHA256, prompts, INT8.id),
        gate_key(SHA256, PromptBuilder(engine, short_headers=True), DEFAULT.id),
    }
    assert len(keys) == 4


def test_a_verdict_survives_json(verdict: Verdict) -> None:
    for kept in (verdict, dataclasses.replace(verdict, figures=None, reuse="off", reason="no")):
        assert verdict_from_json(json.loads(json.dumps(kept.to_json()))) == kept


def test_divergence_is_that_of_the_distributions() -> None:
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])
    rows = np.log(np.stack([p, q])).astype(np.float32)
    assert divergence(rows, rows + 3) == pytest.approx([0, 0], abs=1e-6)
    want = float((p * np.log(p / q)).sum())
    assert divergence(rows[:1], rows[1:] - 7) == pytest.approx([want], rel=1e-5)


@pytest.mark.parametrize(
    ("kl", "top1", "passes"), [(0.2, 0.8, True), (0.21, 0.9, False), (0.1, 0.79, False), (float("nan"), 1.0, False)]
)
def test_the_bounds(kl: float, top1: float, passes: bool) -> None:
    assert Figures(kl, top1, 0.0, 50).passes is passes


def test_forced_logits_are_those_of_the_answer_itself(gate: Gate, engine: LlamaEngine, prompts: PromptBuilder) -> None:
    engine.share(PREFIX, LIVE)
    start, ending = len(prompts.prefix), prompts.ending("What is a queue?")
    answer, rows = greedy(engine, start, ending, 8, lambda: None)
    assert engine.last_position(LIVE) == start - 1
    forced = forced_logits(engine, start, ending, answer, lambda: None)
    assert forced.shape == rows.shape == (len(answer) + 1, engine.vocab_size)
    assert divergence(rows, forced).max() < 0.01
    assert [int(row.argmax()) for row in rows[: len(answer)]] == answer


def test_a_verdict_that_the_gate_cannot_have_come_to_is_known(verdict: Verdict) -> None:
    assert verdict.possible
    assert verdict.figures is not None
    failed = dataclasses.replace(verdict.figures, kl=MOST_KL + 1)
    changes: list[dict[str, Any]] = [
        {"recompute": -5},
        {"recompute": 100_000},
        {"figures": None},
        {"figures": failed},
        {"reuse": "perhaps"},
    ]
    for change in changes:
        assert not dataclasses.replace(verdict, **change).possible
    assert dataclasses.replace(verdict, reuse="off", figures=failed).possible
