"""Conversations on the real small model: what is kept of them, and what comes back."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from kvd.engine.llama import LlamaEngine
from kvd.errors import CancelledError, UsageError
from kvd.kv.codec import BLOCK_TOKENS
from kvd.worker.answerer import Question
from kvd.worker.conversation import Conversation
from kvd.worker.prompt import Piece, select
from kvd.worker.requests import conversation_from

from .conftest import Rig, Rigs
from .test_answerer import Course, follow_question, mean_divergence, tokens_of

SESSION, AUTH, RETRY = "src/session.py", "src/auth.py", "src/retry.py"
ROOT = b"\1" * 32
FIRST, SECOND, THIRD = "Where is the session kept?", "Who logs in?", "When is it tried again?"


class Talk:
    """One conversation, its state taken through JSON after each turn as the daemon does."""

    def __init__(
        self,
        rig: Rig,
        state: dict[str, Any] | None = None,
        turns: list[dict[str, Any]] | None = None,
        pinned: str = "",
    ) -> None:
        self.rig, self.state, self.turns, self.pinned = rig, state, turns or [], pinned

    def conversation(self) -> Conversation:
        data = {"root": ROOT.hex(), "state": self.state, "turns": self.turns}
        return conversation_from(json.loads(json.dumps(data)), self.rig.answerer)

    def question(self, text: str, pieces: list[Piece], max_tokens: int = 8, reuse: bool = True) -> Question:
        return Question(text, pieces, 600, max_tokens, reuse, conversation=self.conversation(), pinned=self.pinned)

    def say(self, text: str, *paths: str, max_tokens: int = 8, reuse: bool = True) -> dict[str, Any]:
        pieces = self.rig.pieces(*paths) if paths else []
        result = self.rig.answerer.answer(self.question(text, pieces, max_tokens, reuse), self.rig.listener())
        self.rig.answerer.check_integrity()
        tokens_of(result)
        self.state = json.loads(json.dumps(result["conversation"]["state"]))
        self.turns.append({"question": text, "answer": result["answer"], "chunks": []})
        return result

    def state_of(self) -> dict[str, Any]:
        assert self.state is not None
        return self.state

    def elsewhere(self, rig: Rig) -> Talk:
        """The same conversation, to go on in another engine."""
        return Talk(rig, self.state, list(self.turns), self.pinned)

    def course(self, text: str, forced: Course | None = None, *paths: str, reuse: bool = True) -> Course:
        """The answer's logits, and nothing remembered of it."""
        pieces = self.rig.pieces(*paths) if paths else []
        return follow_question(self.rig, self.question(text, pieces, reuse=reuse), forced)


def prompt_tokens(talk: Talk) -> list[int]:
    return [token for item in talk.conversation().items for token in item.tokens]


def test_a_follow_up_computes_the_new_turn_alone(rigs: Rigs) -> None:
    rig = rigs(residents=8)
    talk = Talk(rig)
    first = talk.say(FIRST, SESSION)
    before = prompt_tokens(talk)
    second = talk.say(SECOND, AUTH)
    # The very tokens of the turn before come first.
    assert prompt_tokens(talk)[: len(before)] == before
    tokens, told = tokens_of(second), second["conversation"]
    assert tokens["resident"] == tokens_of(first)["recalled"]
    assert (told["resident"], told["loaded"]) == (len(before), 0)
    prompts = rig.answerer.prompts
    opening = 1 + len(prompts.opening(True))  # the last token of an answer that was cut off comes first
    header = prompts.header(2, rig.pieces(AUTH)[0])
    assert tokens["fresh"] == opening + len(header) + len(prompts.ending(SECOND))
    assert told["computed"] == opening
    third = talk.say(THIRD)
    assert tokens_of(third)["fresh"] == 1 + len(prompts.opening(False)) + len(prompts.ending(THIRD))
    assert tokens_of(third)["resident"] == tokens_of(third)["recalled"] == tokens["recalled"]


def test_a_follow_up_says_what_a_whole_prefill_of_the_same_tokens_says(rigs: Rigs) -> None:
    rig = rigs(residents=8)
    talk = Talk(rig)
    # Computed whole, so that nothing but the follow-up differs.
    talk.say(FIRST, SESSION, reuse=False)
    resident = talk.course(SECOND)
    whole = talk.course(SECOND, resident, reuse=False)
    # As in `test_resident`: attention adds up cells in the order of their places.
    assert mean_divergence(whole, resident) < 0.01


def test_what_wakes_from_disk_says_what_the_cells_said(rigs: Rigs) -> None:
    rig = rigs(recompute=4, residents=8)
    talk = Talk(rig)
    talk.say(FIRST, SESSION, max_tokens=30)
    talk.say(SECOND, AUTH, max_tokens=30)
    length = len(prompt_tokens(talk))
    kept = talk.course(THIRD)
    woken = talk.elsewhere(rigs(recompute=4, residents=8))
    again = woken.course(THIRD, kept)
    assert mean_divergence(kept, again) < 0.05
    told = talk.elsewhere(rigs(recompute=4, residents=8)).say(THIRD)
    tokens = tokens_of(told)
    assert (told["conversation"]["resident"], told["conversation"]["loaded"]) == (0, length)
    assert tokens["reused_cold"] == tokens["recalled"] == sum(len(piece.body) for piece in rig.pieces(SESSION, AUTH))
    assert tokens["prefilled"] == tokens["recomputed"] == 0


def test_nothing_is_quantized_twice(rigs: Rigs) -> None:
    talk = Talk(rigs(residents=8))
    stored: dict[str, int] = {}
    replaced: set[str] = set()
    for question in (FIRST, SECOND, THIRD, "And then?", "Why?"):
        told = talk.say(question, max_tokens=40)["conversation"]
        blocks = {key: len(tokens) for _, key, _, tokens in told["state"]["blocks"]}
        assert set(told["replaced"]) <= {key for key, count in stored.items() if count < BLOCK_TOKENS}
        replaced |= set(told["replaced"])
        # What was full stays as it is, and only the last one is not.
        assert [key for key, count in stored.items() if count == BLOCK_TOKENS] == list(blocks)[: len(stored)][
            : sum(count == BLOCK_TOKENS for count in stored.values())
        ]
        assert all(count == BLOCK_TOKENS for count in list(blocks.values())[:-1])
        stored = blocks
    assert sum(stored.values()) == len(prompt_tokens(talk)) > BLOCK_TOKENS
    written = {block.key.hex() for block in talk.rig.written}
    assert written - replaced == set(stored)


def test_where_blocks_are_missing_the_rest_is_computed(rigs: Rigs) -> None:
    talk = Talk(rigs(residents=8))
    for question in (FIRST, SECOND, THIRD):
        talk.say(question, SESSION, max_tokens=40)
    assert talk.state is not None
    blocks = talk.state["blocks"]
    assert len(blocks) > 1
    kept = talk.course("Why?")
    talk.rig.store.drop([bytes.fromhex(blocks[-1][1])])
    assert mean_divergence(kept, talk.elsewhere(rigs(residents=8)).course("Why?", kept)) < 0.05
    other = talk.elsewhere(rigs(residents=8))
    told = other.say("Why?")["conversation"]
    assert 0 < told["loaded"] < told["tokens"]
    # What was computed is stored again.
    assert other.elsewhere(rigs(residents=8)).say("And?")["conversation"]["loaded"] == told["tokens"]
    other.rig.store.drop([ROOT])
    lost = other.elsewhere(rigs(residents=8)).say("And?")
    assert lost["conversation"]["loaded"] == 0
    assert tokens_of(lost)["prefilled"] == tokens_of(lost)["recalled"] > 0


def test_another_model_goes_on_from_the_text(rigs: Rigs) -> None:
    talk = Talk(rigs(residents=8))
    talk.say(FIRST, SESSION)
    rig = rigs(residents=8)
    rig.answerer.model = "another"
    other = talk.elsewhere(rig)
    piece = {"label": 1, "path": SESSION, "start_line": 1, "end_line": 9, "scope": "", "text": "x = 1\n"}
    other.turns[0]["chunks"] = [piece]
    told = other.say(SECOND)
    assert tokens_of(told)["prefilled"] == len(rig.answerer.prompts.body("x = 1\n"))
    assert told["conversation"]["state"]["held"] == [1]
    assert other.say(THIRD)["conversation"]["computed"] < 20


def test_a_fork_changes_nothing_of_what_it_came_from(rigs: Rigs) -> None:
    rig = rigs(residents=8)
    talk = Talk(rig)
    talk.say(FIRST, SESSION)
    alone = talk.course(THIRD)
    fork = talk.elsewhere(rig)
    other = Talk(rig)
    fork.say(SECOND, AUTH)
    other.say(SECOND, RETRY)
    assert mean_divergence(alone, talk.course(THIRD, alone)) < 0.01
    told = talk.say(THIRD)["conversation"]
    assert told["loaded"] == 0
    assert fork.say(THIRD)["conversation"]["loaded"] == 0


def test_a_cancelled_turn_leaves_the_conversation_as_it_was(rigs: Rigs) -> None:
    rig = rigs(residents=8)
    talk = Talk(rig)
    talk.say(FIRST, SESSION)
    before, written = rig.answerer.resident.stats(), len(rig.written)
    for patience in (1, 3, 5):
        steps = iter(range(patience))

        def step(left: Any = steps) -> None:
            if next(left, None) is None:
                raise CancelledError("cancelled")

        listener = dataclasses.replace(rig.silent(), step=step)
        with pytest.raises(CancelledError):
            rig.answerer.answer(talk.question(SECOND, rig.pieces(SESSION), max_tokens=50), listener)
        rig.answerer.resident.check_integrity()
        assert rig.answerer.resident.stats() == before
    assert len(rig.written) == written
    assert talk.say(SECOND)["conversation"]["computed"] < 20


def test_code_that_is_there_is_not_added_again(rigs: Rigs) -> None:
    rig = rigs(residents=8)
    talk = Talk(rig)
    talk.say(FIRST, SESSION)
    session, auth = rig.pieces(SESSION, AUTH)
    question = talk.question(SECOND, [dataclasses.replace(session, present=1), auth])
    result = rig.answerer.answer(question, rig.listener())
    assert result["chunks"] == [1]
    tight = dataclasses.replace(question, budget=len(session.body) + len(auth.body) - 1)
    assert rig.answerer.answer(tight, rig.listener())["chunks"] == []


def test_a_forgotten_conversation_has_no_cells(rigs: Rigs, engine: LlamaEngine) -> None:
    rig = rigs(residents=8)
    talk = Talk(rig)
    talk.say(FIRST, SESSION)
    rig.answerer.forget(talk.conversation())
    assert rig.answerer.resident.stats()["prompts"] == 0
    assert talk.say(SECOND)["conversation"]["loaded"] > 0
    rig.answerer.forget(talk.conversation())
    held = {key for _, key, _, _ in (talk.state or {})["blocks"]}
    assert not any(bytes.fromhex(key) in rig.pool for key in held)


def test_the_state_of_reused_cells_is_finite(rigs: Rigs) -> None:
    talk = Talk(rigs(residents=8))
    talk.say(FIRST, SESSION, AUTH, RETRY)
    assert all(np.isfinite(row).all() for row in talk.course(SECOND).logits)


def test_where_the_context_is_nearly_full_the_conversation_goes_on_without_more_code(rigs: Rigs) -> None:
    talk = Talk(rigs(residents=8))
    talk.say(FIRST, SESSION)
    told = talk.say("why " * 520, AUTH)
    assert told["chunks"] == []
    assert "fills the model's context" in talk.rig.stages[-1].message


def test_a_conversation_that_does_not_fit_is_said_in_one_line(rigs: Rigs) -> None:
    talk = Talk(rigs(residents=8))
    talk.say(FIRST, SESSION)
    with pytest.raises(UsageError, match="the question has"):
        talk.say("why " * 1000)


def test_a_turn_of_another_conversation_is_a_piece_without_lines(rigs: Rigs) -> None:
    rig = rigs(residents=8)
    prompts, text = rig.answerer.prompts, "Question: Who logs in?\nAnswer: A user."
    said = Piece(2, "earlier conversation login, turn 3, 2026-11-24", 0, 0, "", prompts.body(text))
    code = rig.pieces(SESSION, AUTH)
    header = b"".join(map(rig.answerer.engine.piece, prompts.header(3, said)))
    assert header == b"\n\n[3] earlier conversation login, turn 3, 2026-11-24\n"
    # It goes first where not all fits, and stands last.
    assert select([*code, said], len(code[0].body) + len(said.body), 2000) == [code[0], said]
    talk = Talk(rig)
    question = talk.question(FIRST, [*code, said])
    quoted = rig.answerer.quoted(question)
    assert list(quoted) == ["2"]
    rig.answerer.answer(question, rig.listener())
    assert {bytes.fromhex(key) for key in quoted["2"]} <= {block.key for block in rig.written}
    again = rig.answerer.answer(talk.question("Who was it?", [dataclasses.replace(said, index=0)]), rig.listener())
    assert tokens_of(again)["prefilled"] == 0
