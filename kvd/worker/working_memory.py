"""What leaves a conversation's prompt when it is full: code that was not recalled for longest, then the oldest turns,
of which a summary stays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from kvd.worker.conversation import Conversation, length_of
from kvd.worker.layout import Item, Said

_CODE_KEEPS = 3 / 4
_TURNS_KEEP = 1 / 2
"""Shares of what there is room for that stay, so that something does not leave at every turn."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A conversation without what has left it: so many pieces of code, and turns, whose items were `leaving`."""

    conversation: Conversation
    pieces: int
    leaving: tuple[Item, ...]

    @property
    def turns(self) -> int:
        return len({item.turn for item in self.leaving})


def trim(said: Conversation, room: int, wanted: Collection[int] = ()) -> Trimmed:
    """The conversation in at most `room` tokens. The code labelled `wanted` leaves with its turn only."""
    items = _without_code(said, room, wanted)
    turns = _oldest_turns(items, room)
    left = [item for item in items if item.turn not in turns]
    if turns and len(left) > 1 and _leads_to(left[0], left[1]):
        # It led on from a turn that is not there any more.
        left = left[1:]
    leaving = tuple(item for item in said.items if item.turn in turns)
    pieces = sum(len(item.labels) for item in said.items) - sum(len(item.labels) for item in left)
    pending = said.pending if left else ()
    return Trimmed(replace(said, items=tuple(left), pending=pending, cut=True), pieces, leaving)


def _without_code(said: Conversation, room: int, wanted: Collection[int]) -> list[Item]:
    """What stays of the items where only code leaves, least recently recalled first."""
    items, length = list(said.items), said.length

    def value(item: Item) -> tuple[int, int]:
        """Higher stays longer: the last turn that it was recalled for, then its rank there."""
        return max(said.used.get(label, item.turn) for label in item.labels), -min(item.labels)

    code = [item for item in items if item.labels and not set(item.labels) & set(wanted)]
    if length > room:
        for item in sorted(code, key=value):
            if length <= room * _CODE_KEEPS:
                break
            items.remove(item)
            length -= item.end - item.start
    return items


def _oldest_turns(items: Sequence[Item], room: int) -> set[int]:
    """The turns that have to leave."""
    turns: set[int] = set()
    left = length_of(items)
    if left > room:
        for turn in sorted({item.turn for item in items}):
            if left <= room * _TURNS_KEEP:
                break
            turns.add(turn)
            left -= length_of([item for item in items if item.turn == turn])
    return turns


def _leads_to(item: Item, following: Item) -> bool:
    """Whether it is what stands between an answer and the next turn."""
    return isinstance(item, Said) and not item.labels and item.turn == following.turn
