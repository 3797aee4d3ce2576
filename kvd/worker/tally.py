"""Where a prompt's tokens came from."""

from __future__ import annotations

from collections.abc import Sequence

from kvd.kv.pager import Fetched
from kvd.worker.layout import Item, Placed

KINDS = ("recalled", "resident", "reused_hot", "reused_cold", "recomputed", "prefilled", "fresh")


class Tally:
    """Tokens of code add up to `recalled`, wherever they stand in the prompt; `fresh` is all else that was computed.

    `conversation` counts all tokens of earlier turns.
    """

    def __init__(self) -> None:
        self._tokens = dict.fromkeys(KINDS, 0)
        self._conversation = dict.fromkeys(("resident", "loaded", "computed"), 0)

    def resident(self, items: Sequence[Item]) -> None:
        """These were in the cells."""
        for item in items:
            self._code(item, resident=item.recalled)
            self._conversation["resident"] += len(item.tokens)

    def woken(self, items: Sequence[Item], said: Fetched, bodies: Sequence[Fetched]) -> None:
        """These were loaded: chunks from `bodies`, and what had been computed in place from `said`."""
        tier = "reused_cold" if "cold" in said.tiers else "reused_hot"
        left = iter(bodies)
        for item in items:
            self._conversation["loaded"] += len(item.tokens)
            if isinstance(item, Placed):
                self._stored(item, next(left), **{tier: item.recompute})
            else:
                self._code(item, **{tier: item.recalled})

    def computed(self, items: Sequence[Item]) -> None:
        """These were computed as one text."""
        for item in items:
            self._code(item, prefilled=item.recalled)
            self._tokens["fresh"] += len(item.tokens) - item.recalled
            self._conversation["computed"] += len(item.tokens)

    def placed(self, items: Sequence[Placed]) -> None:
        """These chunks were set from what is stored, their heads computed in place."""
        for item in items:
            self._stored(item, item.stored, recomputed=item.recompute)
            self._tokens["fresh"] += len(item.header)

    def _stored(self, item: Placed, stored: Fetched, **more: int) -> None:
        if not item.recalled:
            return
        tiers = {"reused_hot": "hot", "reused_cold": "cold", "prefilled": "new"}
        found = {kind: stored.count(tier, item.recompute) for kind, tier in tiers.items()}
        self._code(item, **{kind: found.get(kind, 0) + more.get(kind, 0) for kind in (*found, *more)})

    def _code(self, item: Item, **kinds: int) -> None:
        self._tokens["recalled"] += item.recalled
        for kind, count in kinds.items():
            self._tokens[kind] += count

    def tokens(self) -> dict[str, int]:
        return dict(self._tokens)

    def conversation(self) -> dict[str, int]:
        """`resident` (in the cells), `loaded` and `computed` tokens."""
        return dict(self._conversation)
