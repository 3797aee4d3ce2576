"""What the daemon asks, out of its frames."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from kvd.worker.answerer import Question
from kvd.worker.prompt import Piece, PromptBuilder
from kvd.worker.protocol import Message, decode_vector
from kvd.worker.rerank import Candidates


def question_from(params: Message, prompts: PromptBuilder, interrupted: Callable[[], bool]) -> Question:
    """The question of an `ask`, or the draft of one of a `prefetch`, its chunks tokenized.

    Once `interrupted()`, the rest of the chunks is left out. Raises `KeyError`, `TypeError` or `ValueError` for
    anything else.
    """
    return Question(
        str(params["question"]),
        _pieces(params, prompts, interrupted),
        int(params["budget"]),
        int(params["max_tokens"]),
        bool(params["reuse"]),
        decode_vector(params["vector"]),
    )


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
        )
        for index, chunk in enumerate(takewhile(lambda _: not interrupted(), params["chunks"]))
    ]
