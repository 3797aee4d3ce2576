"""A conversation whose context is full, on the real small model."""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kvd.engine.llama import LlamaEngine
from kvd.kv.pager import Body
from kvd.worker.conversation import Conversation, length_of, placed_from
from kvd.worker.decoding import LIVE, SPARE, WORK
from kvd.worker.layout import Item, Placed, Said
from kvd.worker.probe import probe
from kvd.worker.prompt import PromptBuilder
from kvd.worker.working_memory import trim

from .conftest import N_CTX, SOURCES, Rig, Rigs, model_path
from .test_answerer import mean_divergence, tokens_of
from .test_conversation import AUTH, FIRST, RETRY, ROOT, SECOND, SESSION, Talk, prompt_tokens

PINNED = "Notes:\n1. The cookie is signed with the key of the settings.\n2. Tests need a database."


def conversation(turns: int, code: int = 40, words: int = 20) -> Conversation:
    """So many turns, each with a piece of code of its own."""
    items: list[Item] = []
    for turn in range(1, turns + 1):
        if turn > 1:
            items.append(Said((1, 2), 0, turn))
        items.append(Placed((3,) * 5, Body((), (turn,) * (code - 5)), 0, 0, turn=turn, labels=(turn,)))
        items.append(Said((4,) * words, 0, turn))
    return Conversation(ROOT, placed_from(items, 0), labels=turns, turns=turns)


def labels_of(said: Conversation) -> list[int]:
    return sorted(said.held)


def test_code_leaves_first_the_least_recently_recalled_of_it() -> None:
    said = conversation(4)
    full = said.length
    trimmed = trim(said, full - 1)
    assert (labels_of(trimmed.conversation), trimmed.pieces, trimmed.turns) == ([3, 4], 2, 0)
    again = dataclasses.replace(said, used={1: 4})
    assert labels_of(trim(again, full - 1).conversation) == [1, 4]
    assert labels_of(trim(said, full - 1, wanted={1, 2}).conversation) == [1, 2]
    assert trim(said, full).conversation.items == said.items


def test_when_no_code_is_left_the_oldest_turns_leave() -> None:
    said = conversation(4)
    trimmed = trim(said, 60)
    left = trimmed.conversation
    assert (trimmed.pieces, trimmed.turns, labels_of(left)) == (4, 3, [])
    # What led on from the turn before has left with it.
    assert [item.turn for item in left.items] == [4]
    assert length_of(trimmed.leaving) == said.length - 40 - 22
    assert left.cut
    nothing = trim(dataclasses.replace(said, pending=(9,)), 0).conversation
    assert (nothing.items, nothing.pending, nothing.turns, nothing.labels) == ((), (), 4, 4)


def test_what_is_pinned_is_computed_once_for_all_conversations(rigs: Rigs) -> None:
    rig = rigs(residents=8)
    prompts = rig.answerer.prompts
    pinned = len(prompts.memory(PINNED, "")[0])
    one, other = Talk(rig, pinned=PINNED), Talk(rig, pinned=PINNED)
    first = one.say(FIRST, SESSION)["conversation"]
    assert (first["resident"], first["loaded"], first["computed"]) == (0, pinned, 0)
    written = len(rig.written)
    second = other.say(SECOND)["conversation"]
    assert (second["resident"], second["computed"]) == (pinned, 0)
    later = Talk(rigs(residents=8), pinned=PINNED).say(SECOND)["conversation"]
    assert (later["loaded"], later["computed"]) == (pinned, 0)
    assert len(rig.written) > written  # the turn
    # It is no part of what is kept of the conversation.
    assert one.conversation().length == first["tokens"]


def test_behind_another_note_all_is_set_anew_and_nothing_computed_again(rigs: Rigs) -> None:
    talk = Talk(rigs(residents=8), pinned=PINNED)
    talk.say(FIRST, SESSION)
    talk.say(SECOND, AUTH)
    length = len(prompt_tokens(talk))
    before = talk.course("Why?")
    talk.pinned = PINNED + "\n3. Names are case-sensitive."
    after = talk.elsewhere(rigs(residents=8))
    assert mean_divergence(before, after.course("Why?", before)) < 0.1
    told = talk.elsewhere(rigs(residents=8)).say("Why?")["conversation"]
    assert told["loaded"] == length + len(talk.rig.answerer.prompts.memory(talk.pinned, "")[0])


def test_without_reuse_what_is_pinned_is_computed(rigs: Rigs) -> None:
    rig = rigs(reuse=False, residents=8)
    talk = Talk(rig, pinned=PINNED)
    talk.say(FIRST, SESSION)
    told = talk.say(SECOND)["conversation"]
    assert told["computed"] < 20
    assert told["resident"] > len(rig.answerer.prompts.memory(PINNED, "")[0])


def goes_on(rig: Rig, tokens: int, reuse: bool) -> int:
    """Talk until so many tokens were said; how often a warning came."""
    talk = Talk(rig, pinned=PINNED)
    said = 0
    stored: set[str] = set()
    while said < tokens:
        turn = len(talk.turns)
        question = f"What does part {turn} do? " + f"I mean number {turn}, not the one before it. " * 8
        result = talk.say(question, list(SOURCES)[turn % len(SOURCES)], max_tokens=8)
        kinds, told = tokens_of(result), result["conversation"]
        said += kinds["recalled"] + kinds["fresh"] + kinds["generated"] - kinds["resident"]
        assert len(result["chunks"]) == 1
        assert told["state"]["labels"] == turn + 1
        assert told["tokens"] < rig.answerer.engine.n_ctx
        stored |= {block.key.hex() for block in rig.written}
        stored -= set(told["replaced"])
        rig.written.clear()
        # Of what was said nothing is computed again: the way to this turn, and at times a summary, are.
        assert not reuse or told["computed"] < 100
    assert talk.conversation().summary
    assert not reuse or {key for _, key, *_ in talk.state_of()["blocks"]} <= stored
    return sum("will leave it" in stage.message for stage in rig.stages)


def test_a_conversation_goes_on_beyond_the_context(rigs: Rigs) -> None:
    assert goes_on(rigs(residents=8), 2 * N_CTX, reuse=True) > 0


@pytest.mark.slow
@pytest.mark.parametrize("reuse", [True, False])
def test_a_conversation_goes_on_for_ten_times_the_context(tmp_path: Path, reuse: bool) -> None:
    with closing(LlamaEngine(model_path(), 2048)) as engine:
        prompts = PromptBuilder(engine)
        rigs = Rigs(engine, prompts, probe(engine, (LIVE, WORK, SPARE)), tmp_path / "kv.db")
        assert goes_on(rigs(reuse=reuse, residents=8), 10 * 2048, reuse) > 5


def test_what_has_left_is_deleted_and_the_rest_wakes(rigs: Rigs) -> None:
    talk = Talk(rigs(residents=8))
    replaced: set[str] = set()
    for number in range(9):
        question = f"What does part {number} do? " + "I mean all of it, every line. " * 10
        told = talk.say(question, SESSION, max_tokens=8)["conversation"]
        replaced |= set(told["replaced"])
        # As the daemon does.
        talk.rig.store.drop([bytes.fromhex(key) for key in told["replaced"]])
    kept = talk.course("Why?")
    assert mean_divergence(kept, talk.elsewhere(rigs(residents=8)).course("Why?", kept)) < 0.05
    told = talk.elsewhere(rigs(residents=8)).say("Why?")["conversation"]
    summary = talk.rig.answerer.memory_parts("", talk.conversation().summary)
    assert told["loaded"] == talk.conversation().length + sum(map(len, summary))
    # More than the unfinished last block of each turn.
    assert len(replaced) > 9


def test_another_model_goes_on_from_the_turns_that_were_left_and_the_summary(rigs: Rigs) -> None:
    talk = Talk(rigs(residents=8))
    for number in range(9):
        talk.say(f"What does part {number} do? " + "I mean all of it, every line. " * 10, RETRY)
    state = json.loads(json.dumps(talk.state))
    first = state["first"]
    assert first > 1
    rig = rigs(residents=8)
    rig.answerer.model = "another"
    turns: list[dict[str, Any]] = [{"question": "Q", "answer": "A", "chunks": []} for _ in range(first, 10)]
    other = Talk(rig, state, turns)
    said = other.conversation()
    assert (said.turns, said.summary, said.labels) == (9, state["summary"], state["labels"])
    assert other.say("Why?")["conversation"]["state"]["turns"] == 10
