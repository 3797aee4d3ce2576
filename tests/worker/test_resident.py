"""Cells that stay after an answer, with the real small model."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvd.engine.llama import LlamaEngine
from kvd.errors import CancelledError
from kvd.worker.answerer import Question
from kvd.worker.probe import Movable
from kvd.worker.prompt import HEADER_TOKENS, Piece, PromptBuilder

from .conftest import Rig, Rigs
from .test_answerer import QUESTION, follow, mean_divergence, tokens_of

SESSION, AUTH, RETRY = "src/session.py", "src/auth.py", "src/retry.py"
OTHER = "When is a call tried again?"


@pytest.fixture(scope="module")
def stored(
    engine: LlamaEngine, prompts: PromptBuilder, movable: Movable, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A store with the KV of all sources: what these tests ask about is no news."""
    path = tmp_path_factory.mktemp("stored") / "kv.db"
    rig = Rigs(engine, prompts, movable, path)()
    rig.answerer.answer(Question(QUESTION, rig.pieces(), 600, 1), rig.listener())
    rig.store.checkpoint()
    rig.store.close()
    return path


@pytest.fixture
def rigs(engine: LlamaEngine, prompts: PromptBuilder, movable: Movable, stored: Path, tmp_path: Path) -> Rigs:
    return Rigs(engine, prompts, movable, Path(shutil.copy(stored, tmp_path)))


def ask(rig: Rig, *paths: str, question: str = QUESTION, reuse: bool = True) -> dict[str, int]:
    """Ask about these files, best first; the tokens by where they came from."""
    result = rig.answerer.answer(Question(question, rig.pieces(*paths), 600, 8, reuse), rig.listener())
    rig.answerer.resident.check_integrity()
    rig.pool.check_integrity()
    return tokens_of(result)


def size(rig: Rig, path: str) -> int:
    return len(rig.pieces(path)[0].body)


def test_the_same_code_again_costs_the_question_alone(rigs: Rigs) -> None:
    rig = rigs(residents=8)
    first = ask(rig, SESSION, AUTH)
    again = ask(rig, SESSION, AUTH, question=OTHER)
    assert first["resident"] == 0
    assert again["resident"] == again["recalled"] == first["recalled"]
    assert again["fresh"] == len(rig.answerer.prompts.ending(OTHER))


def test_a_prompt_that_begins_the_same_way_loads_only_the_rest(rigs: Rigs) -> None:
    rig = rigs(residents=8)
    ask(rig, SESSION, AUTH)
    ask(rig, RETRY)
    tokens = ask(rig, SESSION, RETRY)
    assert tokens["resident"] == size(rig, SESSION)
    assert tokens["reused_hot"] == size(rig, RETRY)


def test_code_at_another_place_or_under_another_header_is_not_resident(rigs: Rigs) -> None:
    rig = rigs(residents=8)
    ask(rig, SESSION, AUTH)
    assert ask(rig, AUTH, SESSION)["resident"] == 0
    moved = [dataclasses.replace(piece, start_line=9, end_line=20) for piece in rig.pieces(SESSION, AUTH)]
    tokens = tokens_of(rig.answerer.answer(Question(QUESTION, moved, 600, 8), rig.listener()))
    assert (tokens["resident"], tokens["reused_hot"]) == (0, tokens["recalled"])


@pytest.mark.parametrize("recompute", [0, 8])
def test_resident_cells_say_what_loaded_ones_say(rigs: Rigs, recompute: int) -> None:
    plain, rig = rigs(recompute), rigs(recompute, residents=8)
    prompts: Sequence[tuple[str, list[Piece]]] = [
        (QUESTION, rig.pieces(SESSION, AUTH)),
        (OTHER, rig.pieces(SESSION, RETRY)),
        (OTHER, rig.pieces(SESSION, AUTH)),
        (QUESTION, rig.pieces(SESSION, AUTH)),
    ]
    loaded = [follow(plain, question, pieces) for question, pieces in prompts]
    resident = [follow(rig, *prompt, forced) for prompt, forced in zip(prompts, loaded, strict=True)]
    # The second has changed nothing of what the first said. Equal they are not: attention adds up cells in the order
    # of their places, and a full prefill among other cells differs from itself as much (0.004).
    assert max(mean_divergence(*pair) for pair in zip(loaded, resident, strict=True)) < 0.01


def test_with_tokens_computed_in_place_only_the_whole_code_is_resident(rigs: Rigs) -> None:
    rig = rigs(recompute=8, residents=8)
    ask(rig, SESSION, AUTH)
    assert ask(rig, SESSION, RETRY)["resident"] == 0
    tokens = ask(rig, SESSION, AUTH)
    assert (tokens["resident"], tokens["recomputed"]) == (tokens["recalled"], 0)


def test_the_least_recently_used_prompt_makes_room(rigs: Rigs) -> None:
    rig = rigs(residents=8)
    orders = [(SESSION, AUTH, RETRY), (AUTH, RETRY, SESSION), (RETRY, SESSION, AUTH), (AUTH, SESSION), (RETRY, AUTH)]
    for order in (*orders, *reversed(orders)):
        ask(rig, *order)
        cells = rig.answerer.resident.stats()
        assert cells["prefix"] + cells["resident"] <= cells["total"]
    # The last two still fit beside each other, the first ones can't all.
    assert ask(rig, *orders[1])["resident"] > 0
    assert ask(rig, *orders[0])["resident"] > 0
    assert ask(rig, *orders[4])["resident"] == 0


def test_no_more_prompts_stay_than_allowed(rigs: Rigs) -> None:
    rig = rigs(residents=1)
    ask(rig, SESSION)
    ask(rig, AUTH)
    assert rig.answerer.resident.stats()["prompts"] == 1
    assert ask(rig, AUTH)["resident"] == size(rig, AUTH)
    assert ask(rig, SESSION)["resident"] == 0
    none = rigs(residents=0)
    ask(none, SESSION)
    assert ask(none, SESSION)["resident"] == 0


def test_shared_cells_count_once(rigs: Rigs) -> None:
    rig = rigs(residents=8)
    ask(rig, SESSION)
    alone = rig.answerer.resident.stats()["resident"]
    ask(rig, SESSION, AUTH)
    both = rig.answerer.resident.stats()
    # The longer prompt says all that the shorter one says.
    assert both["prompts"] == 1
    ask(rig, SESSION, RETRY)
    three = rig.answerer.resident.stats()
    assert three["prompts"] == 2
    retry = three["resident"] - both["resident"]
    assert size(rig, RETRY) < retry < size(rig, RETRY) + alone - size(rig, SESSION) + 4


def test_without_reuse_nothing_is_taken_and_nothing_stays(rigs: Rigs) -> None:
    rig = rigs(residents=8)
    assert ask(rig, SESSION, reuse=False)["resident"] == 0
    assert rig.answerer.resident.stats()["prompts"] == 0
    ask(rig, SESSION)
    assert ask(rig, SESSION, reuse=False)["prefilled"] == size(rig, SESSION)
    assert ask(rig, SESSION)["resident"] == size(rig, SESSION)


def test_a_cancelled_question_leaves_resident_prompts_as_they_were(rigs: Rigs) -> None:
    rig = rigs(residents=8)
    ask(rig, SESSION, AUTH)
    before = rig.answerer.resident.stats()
    for patience in range(1, 5):
        steps = iter(range(patience))

        def step(left: object = steps) -> None:
            if next(left, None) is None:  # type: ignore[call-overload]  # an iterator of numbers
                raise CancelledError("cancelled")

        listener = dataclasses.replace(rig.listener(), step=step)
        with pytest.raises(CancelledError):
            rig.answerer.answer(Question(QUESTION, rig.pieces(SESSION, RETRY), 600, 50), listener)
        rig.answerer.resident.check_integrity()
        assert rig.answerer.resident.stats() == before
    assert ask(rig, SESSION, AUTH)["resident"] > 0


def test_a_prompt_that_fills_the_context_makes_all_others_leave(rigs: Rigs, engine: LlamaEngine) -> None:
    rig = rigs(residents=8)
    ask(rig, SESSION)
    prompts, piece = rig.answerer.prompts, rig.pieces(AUTH)
    taken = len(prompts.prefix) + len(prompts.ending("why")) + 30 + len(piece[0].body) + HEADER_TOKENS
    question = "why " * (engine.n_ctx - taken - 4)
    tokens = tokens_of(rig.answerer.answer(Question(question, piece, 600, 30), rig.listener()))
    assert tokens["recalled"] == len(piece[0].body)
    rig.answerer.resident.check_integrity()
    assert ask(rig, SESSION)["resident"] == 0


def test_a_resident_prompt_still_has_room_for_a_long_answer(rigs: Rigs, engine: LlamaEngine) -> None:
    rig = rigs(residents=8)
    orders = [(SESSION, AUTH), (AUTH, RETRY), (RETRY, SESSION), (SESSION, RETRY)]
    for order in orders:
        ask(rig, *order)
    cells = rig.answerer.resident.stats()
    room = engine.n_ctx - len(rig.answerer.prompts.prefix) - 400
    assert cells["resident"] > engine.n_ctx - cells["prefix"] - room
    rig.answerer.answer(Question(QUESTION, rig.pieces(*orders[-1]), 600, room), rig.listener())
    rig.answerer.resident.check_integrity()
