"""Room for another turn in a conversation's prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvd.types import Progress
from kvd.worker.bringing import Listener
from kvd.worker.conversation import Conversation
from kvd.worker.layout import Item
from kvd.worker.prompt import HEADER_TOKENS, SUMMARISE, Piece
from kvd.worker.turn import Turn
from kvd.worker.working_memory import Trimmed, trim

if TYPE_CHECKING:
    from kvd.worker.answerer import Answerer, Question

_SUMMARY_SHARE = 16
_LONGEST_SUMMARY = 128
_AROUND_SUMMARY = 16
"""A summary's tokens: at most this part of the context, and so many; and those of the words that precede it."""


def fitted(answerer: Answerer, question: Question, listener: Listener) -> Question:
    """The question with as much of its conversation as leaves room for code and answer.

    What leaves is told to the `listener` before it does, and the model sums up the turns among it.
    """
    said = question.conversation
    if said is None:
        return question
    room = _room(answerer, question, question.text)
    code = min(max(0, room) // 2, question.budget, sum(len(p.body) + HEADER_TOKENS for p in question.pieces))
    if said.items and said.length + _summary_length(answerer, said) + code > room:
        longest = _longest_summary(answerer)
        wanted = {piece.present for piece in question.pieces}
        trimmed = trim(said, max(0, room - code - longest - _AROUND_SUMMARY), wanted)
        listener.progress(Progress("notice", message=_warning(trimmed)))
        said = replace(trimmed.conversation, summary=_summary(answerer, question, said, trimmed.leaving, listener))
    return replace(question, conversation=said, pieces=_as_present(question.pieces, said))


def _room(answerer: Answerer, question: Question, text: str) -> int:
    """Tokens for turns and code, with what is pinned and the way to the next turn left out; may be negative."""
    prompts, said = answerer.prompts, question.conversation
    way = len(prompts.opening(True)) + len(said.pending) if said and said.items else 0
    pinned = sum(len(part) for part in answerer.memory_parts(question.pinned, ""))
    return answerer.room(question, len(prompts.ending(text))) - way - pinned


def _longest_summary(answerer: Answerer) -> int:
    return min(_LONGEST_SUMMARY, answerer.engine.longest // _SUMMARY_SHARE)


def _summary_length(answerer: Answerer, said: Conversation) -> int:
    return sum(len(part) for part in answerer.prompts.memory("", said.summary))


def _summary(
    answerer: Answerer, question: Question, said: Conversation, leaving: Sequence[Item], listener: Listener
) -> str:
    """What the model makes of the summary so far and the turns that leave, in the cells that hold them."""
    if not leaving:
        return said.summary
    old = replace(said, items=tuple(leaving), pending=(), turns=leaving[-1].turn)
    asked = replace(
        question, text=SUMMARISE, pieces=(), budget=0, max_tokens=_longest_summary(answerer), conversation=old
    )
    room = _room(answerer, asked, SUMMARISE) - _summary_length(answerer, said)
    if old.length > room:
        old = trim(old, max(0, room)).conversation
    if not old.items:
        return said.summary
    silent = replace(listener, token=lambda text: None)
    told = Turn(answerer, replace(asked, conversation=old), silent, remember=False).run()
    return " ".join(str(told["answer"]).split()) or said.summary


def _warning(trimmed: Trimmed) -> str:
    what = [_counted(trimmed.pieces, "piece of code", "pieces of code"), _counted(trimmed.turns, "turn", "turns")]
    leaves = " and ".join(part for part in what if part)
    rest = "; a summary of them is made" if trimmed.turns else ""
    return f"the conversation fills the model's context: {leaves} will leave it{rest}"


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}" if number else ""


def _as_present(pieces: Sequence[Piece], said: Conversation) -> list[Piece]:
    """Pieces that have left count as new ones."""
    held = said.held
    return [piece if piece.present in held else replace(piece, present=0) for piece in pieces]
