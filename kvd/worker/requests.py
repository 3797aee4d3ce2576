"""What the daemon asks, out of its frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile

from kvd.worker.answerer import Answerer, Question
from kvd.worker.conversation import Conversation, TextTurn, from_state, from_text
from kvd.worker.prompt import Piece, PromptBuilder
from kvd.worker.protocol import Message, decode_vector
from kvd.worker.rerank import Candidates


def question_from(params: Message, answerer: Answerer, interrupted: Callable[[], bool]) -> Question:
    """The question of an `ask`, or the draft of one of a `prefetch`, its chunks tokenized, and its conversation.

    Once `interrupted()`, the rest of the chunks is left out. Raises `KeyError`, `TypeError` or `ValueError` for
    anything else.
    """
    return Question(
        str(params["question"]),
        _pieces(params, answerer.prompts, interrupted),
        int(params["budget"]),
        int(params["max_tokens"]),
        bool(params["reuse"]),
        decode_vector(params["vector"]),
        conversation_from(params["conversation"], answerer) if params.get("conversation") else None,
        str(params.get("pinned", "")),
    )


def conversation_from(data: Message, answerer: Answerer) -> Conversation:
    """A conversation as the daemon has it; where its state is none, or another model's, from the text of the turns that
    the prompt held."""
    prompts, root = answerer.prompts, bytes.fromhex(data["root"])
    if data["state"]:
        kv = answerer.reuse.pager.fingerprint.hex() if answerer.reuse else ""
        known = from_state(data["state"], root, answerer.model, kv)
        if known is not None:
            return known
    turns = [
        TextTurn(str(turn["question"]), str(turn["answer"]), [_said_piece(chunk, prompts) for chunk in turn["chunks"]])
        for turn in data["turns"]
    ]
    state = data["state"] or {"first": 1, "summary": "", "labels": 0}
    conversation = from_text(turns, int(state["first"]), root, prompts, str(state["summary"]))
    return replace(conversation, labels=max(conversation.labels, int(state["labels"])))


def _said_piece(chunk: Message, prompts: PromptBuilder) -> Piece:
    lines = int(chunk["start_line"]), int(chunk["end_line"])
    body = prompts.body(str(chunk["text"]))
    return Piece(int(chunk["label"]), str(chunk["path"]), *lines, str(chunk["scope"]), body)


def candidates_from(params: Message, prompts: PromptBuilder, interrupted: Callable[[], bool]) -> Candidates:
    """What a `rank` asks to judge; otherwise as `question_from`."""
    pieces = _pieces(params, prompts, interrupted)
    return Candidates(str(params["question"]), pieces, float(params["seconds"]), decode_vector(params["vector"]))


def _pieces(params: Message, prompts: PromptBuilder, interrupted: Callable[[], bool]) -> list[Piece]:
    return [
        Piece(
            index,
            str(chunk["path"]),
            int(chunk["start_line"]),
            int(chunk["end_line"]),
            str(chunk["scope"]),
            prompts.body(str(chunk["text"])),
            decode_vector(chunk["vector"]),
            int(chunk.get("present", 0)),
        )
        for index, chunk in enumerate(takewhile(lambda _: not interrupted(), params["chunks"]))
    ]
