"""What a conversation's prompt holds behind the shared prefix, as it goes from turn to turn and from child to child.

The daemon keeps it as JSON, which says nothing to it, beside the text of all turns. Where it is of another model, the
text alone has to do: everything is tokenized and computed anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvd.kv.pager import BlockAddress, Body
from kvd.worker.layout import Item, Placed, Said
from kvd.worker.prompt import Piece, PromptBuilder, joined
from kvd.worker.protocol import STATE_FORMAT


@dataclass(frozen=True, slots=True)
class SaidBlock:
    """A stored block (`kvd.kv.said`) of tokens that were computed in place; `at` is the number of the first of them."""

    at: int
    address: BlockAddress

    @property
    def end(self) -> int:
        return self.at + len(self.address.tokens)


@dataclass(frozen=True, slots=True)
class TextTurn:
    """A turn in words; `pieces` are the chunks that it brought in, with their labels as indices."""

    question: str
    answer: str
    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class Conversation:
    """`root` is what its first stored block continues. `items` stand one behind the other. `pending` are tokens of the
    last answer that were not computed; `labels` is the highest one given, `turns` how many there have been.

    `summary` tells what the turns said that are not among the items any more. `used` has for each label the last turn
    that it was recalled for. Where something has left that stood before the last `blocks`, it is `cut`: what is stored
    next begins a chain of its own, so that what has left can be deleted.
    """

    root: bytes
    items: tuple[Item, ...] = ()
    blocks: tuple[SaidBlock, ...] = ()
    pending: tuple[int, ...] = ()
    labels: int = 0
    turns: int = 0
    summary: str = ""
    used: Mapping[int, int] = field(default_factory=dict)
    cut: bool = False

    @property
    def length(self) -> int:
        """Tokens of the turns that stand in the prompt."""
        return length_of(self.items)

    @property
    def held(self) -> set[int]:
        """Labels of the code that stands in the prompt."""
        return {label for item in self.items for label in item.labels}

    def to_state(self, model: str, kv: str) -> dict[str, Any]:
        """`model` names what decides the tokens, `kv` what decides the stored blocks. The daemon reads `held`, the
        labels of the chunks that the prompt holds, and `first`, the first turn that it holds."""
        held = self.held
        return {
            "format": STATE_FORMAT,
            "model": model,
            "kv": kv,
            "items": [_item_to_json(item) for item in self.items],
            "blocks": [[b.at, b.address.key.hex(), b.address.parent.hex(), b.address.tokens] for b in self.blocks],
            "pending": self.pending,
            "labels": self.labels,
            "turns": self.turns,
            "summary": self.summary,
            "used": [[label, turn] for label, turn in self.used.items() if label in held],
            "cut": self.cut,
            "held": sorted(held),
            "first": self.items[0].turn if self.items else self.turns + 1,
        }


def from_state(state: dict[str, Any], root: bytes, model: str, kv: str) -> Conversation | None:
    """The conversation, its first item at position 0; None where its tokens are another model's.

    Raises `KeyError`, `TypeError` or `ValueError` for what is no state.
    """
    if state["model"] != model:
        return None
    items, blocks = [_item_from_json(item) for item in state["items"]], state["blocks"]
    if state["kv"] != kv:
        items, blocks = [replace(item, at=-1) for item in items], []
    return Conversation(
        root,
        placed_from(items, 0),
        tuple(
            SaidBlock(int(at), BlockAddress(bytes.fromhex(key), bytes.fromhex(parent), tuple(tokens)))
            for at, key, parent, tokens in blocks
        ),
        tuple(state["pending"]),
        int(state["labels"]),
        int(state["turns"]),
        str(state["summary"]),
        {int(label): int(turn) for label, turn in state["used"]},
        bool(state["cut"]),
    )


def from_text(turns: Sequence[TextTurn], first: int, root: bytes, prompts: PromptBuilder, summary: str) -> Conversation:
    """The conversation in the tokens of this model, nothing of it stored; the first of its turns has the number
    `first`, what was said before is in the `summary`."""
    items: list[Item] = []
    for number, turn in enumerate(turns, first):
        if items:
            items.append(Said(tuple(prompts.opening(bool(turn.pieces))), 0, number))
        if turn.pieces:
            items.append(code_of(turn.pieces, [piece.index for piece in turn.pieces], prompts, number))
        items.append(Said((*prompts.ending(turn.question), *prompts.body(turn.answer)), 0, number))
    labels = max((piece.index for turn in turns for piece in turn.pieces), default=0)
    return Conversation(root, placed_from(items, 0), labels=labels, turns=first + len(turns) - 1, summary=summary)


def code_of(pieces: Sequence[Piece], labels: Sequence[int], prompts: PromptBuilder, turn: int) -> Said:
    """Code that is computed as one text."""
    headers = [prompts.header(label, piece) for label, piece in zip(labels, pieces, strict=True)]
    return Said(tuple(joined(headers, pieces)), 0, turn, sum(len(piece.body) for piece in pieces), tuple(labels))


def length_of(items: Sequence[Item]) -> int:
    """Tokens."""
    return sum(item.end - item.start for item in items)


def placed_from(items: Sequence[Item], start: int) -> tuple[Item, ...]:
    """The items one behind the other from position `start` on."""
    ends = itertools.accumulate((item.end - item.start for item in items), initial=start)
    return tuple(replace(item, start=at) for item, at in zip(items, ends, strict=False))


def _item_to_json(item: Item) -> dict[str, Any]:
    common = {"turn": item.turn, "labels": item.labels, "at": item.at}
    if isinstance(item, Said):
        return {**common, "said": item.tokens, "recalled": item.recalled}
    body = {"head": item.body.head, "body": item.body.tokens, "recompute": item.recompute}
    return {**common, "header": item.header, **body}


def _item_from_json(data: dict[str, Any]) -> Item:
    turn, labels, at = int(data["turn"]), tuple(data["labels"]), int(data["at"])
    if "said" in data:
        return Said(tuple(data["said"]), 0, turn, int(data["recalled"]), labels, at)
    body = Body(tuple(data["head"]), tuple(data["body"]))
    return Placed(tuple(data["header"]), body, 0, int(data["recompute"]), turn=turn, labels=labels, at=at)
