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
_NUMBER = re.compile(r"\d+")


def cited_chunks(answer: str, prompt: Sequence[Chunk]) -> set[int]:
    """Positions in `prompt` that `answer` cites.

    `prompt` is in prompt order: the label of the chunk at position k is `[k + 1]`. A citation is such a label
    outside of code, or `path:line` or `path:first-last` where the end of a path and a line of a chunk agree.
    Whatever names something else is no citation.
    """
    return _by_label(answer, len(prompt)) | {
        position for position, chunk in enumerate(prompt) if _mentions(answer, chunk)
    }


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
