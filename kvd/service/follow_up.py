"""Recall for a question that goes on with a conversation, and its sources."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from kvd.service.citations import cited_chunks
from kvd.service.conversations import Talk
from kvd.sessions.records import SaidChunk
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


def sources_of(
    talk: Talk, hits: Sequence[Hit], added: Sequence[int], answer: str, labels_held: Collection[int]
) -> list[tuple[Hit, int, bool]]:
    """The sources of an answer, each with its label and whether it is cited: of the hits those in the prompt, now
    `added` or there before, best first; then what else of the conversation's code is cited. `labels_held` are in the
    prompt now."""
    labels = dict(enumerate(added, talk.labels + 1))
    held = {label: chunk for label, chunk in talk.held.items() if label in labels_held}
    prompt = [
        hits[labels[label]].chunk if label in labels else _chunk(held[label]) if label in held else _NOWHERE
        for label in range(1, talk.labels + len(added) + 1)
    ]
    cited = {position + 1 for position in cited_chunks(answer, prompt)} & (labels.keys() | held.keys())
    present = {index: label for index, label in talk.present(hits).items() if label in held}
    by_index = present | {index: label for label, index in labels.items()}
    sources = [(hits[index], by_index[index], by_index[index] in cited) for index in sorted(by_index)]
    others = cited - set(by_index.values())
    return [*sources, *((Hit(_chunk(held[label]), 0.0), label, True) for label in sorted(others))]


def _chunk(said: SaidChunk) -> Chunk:
    return Chunk(said.path, said.language, said.scope, said.start_line, said.end_line, 0, 0, said.text)
