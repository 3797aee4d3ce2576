"""What a conversation consists of."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvd.errors import UsageError

LONGEST_NAME = 64
_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True, slots=True)
class Session:
    """Times are `time.time()`. `family` is a random number that forks share with what they were forked from; `parent`
    the name of that, or "". `model` and `model_sha256` are of the last answer, or ""."""

    id: int
    name: str
    root: Path
    family: bytes
    parent: str
    model: str
    model_sha256: str
    created_at: float
    used_at: float
    closed: bool
    turns: int

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "parent": self.parent or None,
            "model": self.model or None,
            "model_sha256": self.model_sha256 or None,
            "created_at": self.created_at,
            "used_at": self.used_at,
            "closed": self.closed,
            "turns": self.turns,
        }


@dataclass(frozen=True, slots=True)
class SaidChunk:
    """A piece of code in a conversation's prompt, as it was when turn number `turn` brought it in under `label`."""

    label: int
    turn: int
    path: str
    start_line: int
    end_line: int
    scope: str
    language: str
    text: str

    @property
    def hash(self) -> bytes:
        return content_hash(self.text)


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer. `sources`, `tokens` and `timings_ms` are as in the result of `ask`; `commit` is the
    repository's at that time, or ""."""

    number: int
    question: str
    answer: str
    finish: str
    asked_at: float
    commit: str = ""
    sources: list[dict[str, Any]] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    timings_ms: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Memory:
    """A turn that bears on a question. A higher `score` is better; scores of one question are comparable. `cited` is
    the code that the answer cites: paths, and texts as they were."""

    session_id: int
    session: str
    number: int
    asked_at: float
    commit: str
    question: str
    answer: str
    score: float
    cited: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Quote:
    """A turn of the session `source_id` as a chunk of a prompt. `stale`: code that it cites had changed by then."""

    source_id: int
    session: str
    turn: int
    asked_at: float
    commit: str
    stale: bool

    def to_json(self) -> dict[str, Any]:
        names = ("session", "turn", "asked_at", "commit", "stale")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Note:
    """What is to be kept in mind about a repository, in all its sessions. Numbers stay when others are deleted."""

    number: int
    text: str
    created_at: float

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Deleted:
    """What went with a session: its engine state and its family; `last`: no other session of the family is left.
    `kept` are the states of those that are. `quoted`: keys of what is stored of it as a part of other prompts."""

    family: bytes
    state: str
    last: bool
    kept: tuple[str, ...]
    quoted: tuple[bytes, ...] = ()


def content_hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def check_name(name: str) -> str:
    """`name` if a session may be called so, else `UsageError`."""
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise UsageError(
            f"a session can't be called {name[:LONGEST_NAME]!r}",
            hint=f"up to {LONGEST_NAME} letters, digits and any of . _ - behind the first one",
        )
    return name
