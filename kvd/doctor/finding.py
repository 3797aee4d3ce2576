"""What one look at something came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "note", "fault"]
"""`note`: it works, but not as well as it could; `fault`: something does not work until the hint is followed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`hint` is what to do, for all but "ok"."""

    part: str
    verdict: Verdict
    text: str
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def ok(part: str, text: str) -> Finding:
    return Finding(part, "ok", text)


def note(part: str, text: str, hint: str) -> Finding:
    return Finding(part, "note", text, hint)


def fault(part: str, text: str, hint: str) -> Finding:
    return Finding(part, "fault", text, hint)
