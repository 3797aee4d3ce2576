"""What an answer cites, held against the chunks that its prompt held."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvd.types import Chunk

_FENCE = re.compile(r"^(```|~~~).*?(?:^\1|\Z)", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]*)`")
_LABELS = r"\[\d{1,4}(?:\s*,\s*\d{1,4})*\]"
# `items[0]`, `f()[1]` and `"x"[2]` are code, not citations.
_CITED = re.compile(rf"(?<![\w)\]\"'])(?:{_LABELS})+")
_WORD = re.compile(r"[\w./-]+")
_DEFINITION = re.compile(
    r"\b(?:class|def|enum|fn|func|function|impl|interface|module|struct|trait|type)\s+(?:\([^()\n]*\)\s*)?([^\W\d]\w*)"
)
_SHORTEST_NAME = 4
"""Shorter names are words that code spans hold for other reasons."""
_NUMBER = re.compile(r"\d+")


def cited_chunks(answer: str, prompt: Sequence[Chunk]) -> set[int]:
    """Positions in `prompt` that `answer` cites.

    `prompt` is in prompt order: the label of the chunk at position k is `[k + 1]`. A citation is such a label
    outside of code, or `path:line` or `path:first-last` where the end of a path and a line of a chunk agree.
    Small models seldom give labels: what names just one of the chunks in inline code, by a definition or by the
    file, cites it as well. Whatever names something else is no citation.
    """
    places = {position for position, chunk in enumerate(prompt) if _mentions(answer, chunk)}
    return _by_label(answer, len(prompt)) | places | _by_name(answer, prompt)


def _by_name(answer: str, prompt: Sequence[Chunk]) -> set[int]:
    """Chunks that are the only ones of a definition or file that a code span names."""
    owners: dict[str, set[int]] = {}
    for position, chunk in enumerate(prompt):
        definitions = {scope.rsplit(".", 1)[-1] for scope in chunk.scope.split(", ")}
        definitions.update(_DEFINITION.findall(chunk.text))
        for name in (*definitions, chunk.path, chunk.path.rsplit("/", 1)[-1]):
            if len(name) >= _SHORTEST_NAME:
                owners.setdefault(name, set()).add(position)
    words = {word.strip("./") for span in _SPAN.findall(answer) for word in _WORD.findall(span)}
    # Of `Session.close`, the last name is what is meant.
    named = words | {word.rsplit(".", 1)[-1] for word in words}
    return {position for name in named for position in owners.get(name, ()) if len(owners[name]) == 1}


def _by_label(answer: str, count: int) -> set[int]:
    prose = _SPAN.sub(_kept_label, _FENCE.sub(" ", answer))
    labels = {int(number) for run in _CITED.findall(prose) for number in _NUMBER.findall(run)}
    return {label - 1 for label in labels if 1 <= label <= count}


def _kept_label(span: re.Match[str]) -> str:
    """An inline code span counts only if it is nothing but a label."""
    return span.group(1) if re.fullmatch(_LABELS, span.group(1)) else " "


def _mentions(answer: str, chunk: Chunk) -> bool:
    parts = chunk.path.split("/")
    for start in range(len(parts)):
        suffix = "/".join(parts[start:])
        if suffix not in answer:
            continue
        pattern = rf"(?<![\w./\\-])(?:\./)?{re.escape(suffix)}:(\d{{1,9}})(?:\s?[-–]\s?(\d{{1,9}}))?"
        for match in re.finditer(pattern, answer):
            first = int(match.group(1))
            last = int(match.group(2) or first)
            if first <= chunk.end_line and max(first, last) >= chunk.start_line:
                return True
    return False
