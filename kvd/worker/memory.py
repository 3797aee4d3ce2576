"""A conversation's KV on its way between cells and disk.

Of chunks the store has the bodies anyway. What is stored for a conversation alone is what was computed in place:
headers, questions, answers and the template, one token after the other, cut into blocks (`kvd.kv.said`).
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from kvd.engine.llama import LlamaEngine
from kvd.engine.state import StateFormatError, parse_state
from kvd.errors import ModelError
from kvd.kv.codec import BLOCK_TOKENS, BlockError
from kvd.kv.pager import Fetched
from kvd.kv.said import address, seal
from kvd.kv.spans import Spans
from kvd.kv.store import StoredBlock
from kvd.worker.batcher import Batcher
from kvd.worker.conversation import Conversation, SaidBlock
from kvd.worker.decoding import PREFIX, Slot
from kvd.worker.layout import Item, Placed
from kvd.worker.reuse import Reuse

_AT_ONCE = 4 * BLOCK_TOKENS
"""Tokens whose KV is taken out of the cells in one go, which nothing else can be computed beside."""


@dataclass(frozen=True, slots=True)
class _Fresh:
    """A token that was computed in place: its number among those of the conversation, and its position."""

    number: int
    position: int
    token: int


def blocks_for(items: Sequence[Item], blocks: Sequence[SaidBlock]) -> list[SaidBlock]:
    """The stored blocks that these items have tokens in."""
    needed = {number for item in items for number in _numbers(item)}
    return [block for block in blocks if not needed.isdisjoint(range(block.at, block.end))]


def loadable(items: Sequence[Item], blocks: Sequence[SaidBlock]) -> list[Item]:
    """The items before the first of which something is neither a chunk's body nor in these blocks."""
    there = _rows(blocks)
    return list(
        itertools.takewhile(
            lambda item: not item.fresh or (item.at >= 0 and all(number in there for number in _numbers(item))), items
        )
    )


def _numbers(item: Item) -> range:
    """Those of an item's tokens in what is stored of the conversation."""
    return range(item.at, item.at + len(item.fresh)) if item.at >= 0 else range(0)


def _rows(blocks: Sequence[SaidBlock]) -> dict[int, int]:
    """Where the tokens of these blocks are when one stands behind the other, by their numbers."""
    numbers = itertools.chain.from_iterable(range(block.at, block.end) for block in blocks)
    return {number: row for row, number in enumerate(numbers)}


def _needed(blocks: Sequence[SaidBlock], items: Sequence[Item], root: bytes) -> tuple[list[SaidBlock], list[SaidBlock]]:
    """The blocks from the first chain on in which these items have tokens, and those of the chains before."""
    used = blocks_for(items, blocks)
    start = blocks.index(used[0]) if used else len(blocks)
    while start < len(blocks) and blocks[start].address.parent != root:
        start -= 1
    return list(blocks[start:]), list(blocks[:start])


class Memory:
    """Puts conversations into cells and takes them out, for one engine whose KV can be moved."""

    def __init__(self, engine: LlamaEngine, batcher: Batcher, reuse: Reuse) -> None:
        self._engine, self._batcher, self._reuse = engine, batcher, reuse

    def load(
        self,
        items: Sequence[Item],
        blocks: Sequence[SaidBlock],
        said: Fetched,
        bodies: Sequence[Fetched],
        slot: Slot,
        spans: Spans,
    ) -> bool:
        """Put `items` into the live sequence from blocks in the pool; False if llama.cpp refuses.

        `said` has `blocks`, `bodies` those of the chunks among the items.
        """
        rows = _rows(blocks)
        offset = len(rows)
        indices: list[int] = []
        positions: list[int] = []
        for item in items:
            indices += [rows[number] for number in _numbers(item)]
            positions += range(item.start, item.start + len(item.fresh))
            if isinstance(item, Placed):
                length = len(item.body.tokens)
                indices += range(offset + item.recompute, offset + length)
                positions += range(item.stored_start, item.end)
                offset += length

        def then() -> None:
            self._engine.share(PREFIX, slot.live)
            self._engine.share(slot.spare, slot.live)
            self._engine.remove(slot.spare)

        pager = self._reuse.pager
        return self._reuse.set_rows(lambda: pager.rows([said, *bodies]).only(indices), positions, slot, spans, then)

    def keep(
        self, conversation: Conversation, items: Sequence[Item], slot: Slot
    ) -> tuple[Conversation, list[StoredBlock], list[bytes]]:
        """The conversation that consists of those of the `items` in the live sequence that belong to a turn.

        With it come the blocks to be stored of what has not been, and the keys of stored ones that are not needed any
        more. Where the KV can't be kept, the conversation has none.
        """
        said = [item for item in items if item.turn]
        blocks, obsolete = _needed(conversation.blocks, said, conversation.root)
        numbered = _numbered(said, blocks[-1].end if blocks else 0)
        fresh = [
            _Fresh(item.at + index, item.start + index, token)
            for item in numbered
            for index, token in enumerate(item.fresh)
        ]
        if blocks and len(blocks[-1].address.tokens) < BLOCK_TOKENS and _all_there(blocks[-1], fresh):
            # What is in it has not been quantized.
            obsolete.append(blocks.pop())
        start = blocks[-1].end if blocks else (fresh[0].number if fresh else 0)
        parent = blocks[-1].address.key if blocks and not conversation.cut else conversation.root
        unsaved = [token for token in fresh if token.number >= start]
        context = [*(item for item in items if not item.turn), *numbered]
        try:
            made, frames = self._seal(unsaved, parent, context, slot)
        except (BlockError, ModelError, StateFormatError):
            bare = tuple(replace(item, at=-1) for item in said)
            keys = [block.address.key for block in conversation.blocks]
            return replace(conversation, items=bare, blocks=(), cut=False), [], keys
        after = replace(conversation, items=tuple(numbered), blocks=(*blocks, *made), cut=False)
        return after, frames, [block.address.key for block in obsolete]

    def _seal(
        self, tokens: Sequence[_Fresh], parent: bytes, items: Sequence[Item], slot: Slot
    ) -> tuple[list[SaidBlock], list[StoredBlock]]:
        blocks, frames = [], []
        pager = self._reuse.pager
        for start in range(0, len(tokens), _AT_ONCE):
            part = tokens[start : start + _AT_ONCE]
            kv = self._take([token.position for token in part], slot)
            for first in range(0, len(part), BLOCK_TOKENS):
                group = part[first : first + BLOCK_TOKENS]
                before = _content_up_to(items, group[-1].position)
                block = address(pager, parent, tuple(token.token for token in group), before)
                frames.append(seal(pager, block, kv[:, :, first : first + len(group)]))
                blocks.append(SaidBlock(group[0].number, block))
                parent = block.key
        return blocks, frames

    def _take(self, positions: Sequence[int], slot: Slot) -> torch.Tensor:
        """The KV of the live sequence's cells at these ascending positions, as it is stored."""

        def take() -> npt.NDArray[np.uint8]:
            for start, end in _ranges(positions):
                self._engine.share(slot.live, slot.spare, start, end)
            blob = self._engine.get_state(slot.spare)
            self._engine.remove(slot.spare)
            return blob

        state = parse_state(self._batcher.call(take))
        if state.positions.tolist() != list(positions):
            raise ModelError("llama.cpp gave back other cells than were computed", hint="kvd logs")
        return self._reuse.at_position_0(state)


def _numbered(items: Sequence[Item], end: int) -> list[Item]:
    """Tokens that are stored nowhere get the numbers from `end` on."""
    numbered = []
    for item in items:
        if item.at < 0:
            item = replace(item, at=end)
        end = max(end, item.at + len(item.fresh))
        numbered.append(item)
    return numbered


def _all_there(block: SaidBlock, tokens: Sequence[_Fresh]) -> bool:
    return {token.number for token in tokens}.issuperset(range(block.at, block.end))


def _ranges(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges, ends exclusive."""
    ranges: list[tuple[int, int]] = []
    for position in positions:
        if ranges and ranges[-1][1] == position:
            ranges[-1] = (ranges[-1][0], position + 1)
        else:
            ranges.append((position, position + 1))
    return ranges


def _content_up_to(items: Sequence[Item], position: int) -> bytes:
    """A hash of all that decides the state of the cells up to there."""
    digest = hashlib.blake2b(digest_size=32)
    for item in itertools.takewhile(lambda item: item.start <= position, items):
        kind = [item.recompute, len(item.body.head), *item.body.head] if isinstance(item, Placed) else [-1]
        digest.update(array("i", [*kind, len(item.tokens), *item.tokens]).tobytes())
    return digest.digest()
