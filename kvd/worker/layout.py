"""What stands where in a prompt, behind the shared prefix: chunks, and what was said."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from kvd.kv.pager import Body, Fetched
from kvd.worker.prompt import Piece, PromptBuilder


@dataclass(frozen=True, slots=True)
class Placed:
    """A chunk's place in the prompt: its header's tokens from `start` on, then its body.

    The first `recompute` tokens of the body are computed in place, the others are taken from `stored`. A `resident`
    one is in the live sequence's cells already. For conversations: `turn` and `labels` say which turn brought it in
    and what it is called; `at` is where its fresh tokens' KV is in what is stored of the conversation, -1 for nowhere.
    """

    header: tuple[int, ...]
    body: Body
    start: int
    recompute: int
    stored: Fetched = field(default_factory=Fetched)
    resident: bool = False
    turn: int = 0
    labels: tuple[int, ...] = ()
    at: int = -1

    @property
    def stored_start(self) -> int:
        return self.start + len(self.header) + self.recompute

    @property
    def end(self) -> int:
        return self.start + len(self.header) + len(self.body.tokens)

    @property
    def fresh(self) -> list[int]:
        """Tokens that are computed in place, from `start` to `stored_start`."""
        return [*self.header, *self.body.tokens[: self.recompute]]

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.header, *self.body.tokens)

    @property
    def recalled(self) -> int:
        """Tokens of code; what is ahead of the turns has no header and is none."""
        return len(self.body.tokens) if self.header else 0

    @property
    def content(self) -> Hashable:
        """What decides the state of its cells, behind those of what stands before it."""
        return self.header, self.body, self.recompute


@dataclass(frozen=True, slots=True)
class Said:
    """Tokens that were all computed in place: questions, answers, the template, and code of which nothing was stored
    (`recalled` tokens of it). Otherwise as `Placed`."""

    tokens: tuple[int, ...]
    start: int
    turn: int = 0
    recalled: int = 0
    labels: tuple[int, ...] = ()
    at: int = -1

    @property
    def stored_start(self) -> int:
        return self.end

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def fresh(self) -> list[int]:
        return list(self.tokens)

    @property
    def content(self) -> Hashable:
        return "said", self.tokens


Item = Placed | Said
"""Of a conversation, `turn` 0 is what stands ahead of its turns."""


def runs_of(items: Sequence[Item]) -> list[tuple[Hashable, int]]:
    """Contents and numbers of cells, as `ResidentPrompts` wants them."""
    return [(item.content, item.end - item.start) for item in items]


def as_said(item: Item) -> Said:
    """The same tokens, all computed in place."""
    return Said(item.tokens, item.start, item.turn, item.recalled, item.labels)


def body_of(piece: Piece, prompts: PromptBuilder) -> Body:
    """What is stored of a piece: its body, made behind a header that gives its scope."""
    return Body(prompts.neutral_header(piece.scope), piece.body, piece.vector)


def place(start: int, headers: Sequence[Sequence[int]], bodies: Sequence[Body], recompute: int) -> list[Placed]:
    """One chunk behind the other from position `start` on, nothing stored yet."""
    placed: list[Placed] = []
    for header, body in zip(headers, bodies, strict=True):
        placed.append(Placed(tuple(header), body, start, min(recompute, len(body.tokens))))
        start = placed[-1].end
    return placed


def ahead(parts: Sequence[tuple[int, ...]], start: int, stored: bool) -> list[Item]:
    """Texts one behind the other, ahead of all turns, from position `start` on; `stored` like bodies of chunks, so that
    all conversations share their KV."""
    items: list[Item] = []
    for part in parts:
        items.append(Placed((), Body((), part), start, 0) if stored else Said(part, start))
        start = items[-1].end
    return items


def filled(placed: Sequence[Placed], stored: Sequence[Fetched]) -> list[Placed]:
    """The chunks with what is stored of their bodies."""
    return [replace(item, stored=fetched) for item, fetched in zip(placed, stored, strict=True)]
