"""Recall for a question that goes on with a conversation, and what its answer rests on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvd.service.citations import cited_chunks
from kvd.service.conversations import Talk
from kvd.service.memories import Recalled
from kvd.sessions.records import Quote, SaidChunk
from kvd.types import Chunk, Hit

_BEFORE = 0.4
"""What the question before counts beside the one at hand. An assumption: it was not measured."""
_NOWHERE = Chunk("", "", "", 0, 0, 0, 0, "")


def blended(now: Sequence[Hit], before: Sequence[Hit]) -> list[Hit]:
    """What two questions recalled, best first: the scores of the one before, brought to the same scale, are damped."""
    most = max((hit.score for hit in now), default=0.0)
    scale = most / max(hit.score for hit in before) if most > 0 and before else 1.0
    found: dict[tuple[str, int, int], Hit] = {_place(hit): hit for hit in now}
    for hit in before:
        known = found.get(_place(hit), replace(hit, score=0.0))
        found[_place(hit)] = replace(known, score=known.score + _BEFORE * scale * hit.score)
    return sorted(found.values(), key=lambda hit: -hit.score)


def _place(hit: Hit) -> tuple[str, int, int]:
    return hit.chunk.path, hit.chunk.start_line, hit.chunk.end_line


@dataclass(frozen=True, slots=True)
class Used:
    """What of a prompt an answer rests on, best first: code, and turns that were recalled, each with its label and
    whether it is cited. Of a conversation `cited` are the labels of what is cited, `quotes` has the turns that are
    new, by label."""

    sources: list[tuple[Hit, int, bool]]
    memories: list[tuple[Quote, int, bool]] = field(default_factory=list)
    cited: list[int] = field(default_factory=list)
    quotes: dict[int, Quote] = field(default_factory=dict)


def used_by(talk: Talk | None, hits: Sequence[Hit], recalled: Sequence[Recalled], result: dict[str, Any]) -> Used:
    """What the engine's `result` for a question rests on; what was `recalled` stood behind the hits."""
    prompt, answer = [int(index) for index in result["chunks"]], str(result["answer"])
    if talk is not None:
        return _used_in(talk, hits, recalled, prompt, answer, result["conversation"]["state"]["held"])
    cited = cited_chunks(answer, [hits[index].chunk for index in prompt])
    placed = {index: position for position, index in enumerate(prompt)}
    # Hits are in rank order, so are the sources.
    return Used([(hits[index], placed[index] + 1, placed[index] in cited) for index in sorted(prompt)])


def _used_in(
    talk: Talk,
    hits: Sequence[Hit],
    recalled: Sequence[Recalled],
    added: Sequence[int],
    answer: str,
    labels_held: Collection[int],
) -> Used:
    """What was in the prompt of the hits and of what was `recalled`, now `added` or there before; then what else of the
    conversation is cited. `labels_held` are in the prompt now."""
    pieces = [*hits, *(memory.hit for memory in recalled)]
    labels = dict(enumerate(added, talk.labels + 1))
    held = {label: chunk for label, chunk in talk.held.items() if label in labels_held}
    prompt = [
        pieces[labels[label]].chunk if label in labels else _chunk(held[label]) if label in held else _NOWHERE
        for label in range(1, talk.labels + len(added) + 1)
    ]
    cited = {position + 1 for position in cited_chunks(answer, prompt)} & (labels.keys() | held.keys())
    present = {index: label for index, label in talk.present(pieces).items() if label in held}
    by_index = present | {index: label for label, index in labels.items()}
    found = [(by_index[index], pieces[index]) for index in sorted(by_index)]
    found += [(label, Hit(_chunk(held[label]), 0.0)) for label in sorted(cited - set(by_index.values()))]
    quotes = {label: recalled[index - len(hits)].quote for label, index in labels.items() if index >= len(hits)}
    turns = talk.quotes | quotes
    return Used(
        sources=[(hit, label, label in cited) for label, hit in found if label not in turns],
        memories=[(turns[label], label, label in cited) for label, _ in found if label in turns],
        cited=sorted(cited),
        quotes=quotes,
    )


def _chunk(said: SaidChunk) -> Chunk:
    return Chunk(said.path, said.language, said.scope, said.start_line, said.end_line, 0, 0, said.text)
