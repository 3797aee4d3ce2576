"""Blocks of what was said: a conversation's tokens that were computed in place, with the KV that they had there.

They are chained like a body's, from a root of the conversation's own. Full ones are quantized, once; the last one stays
float16 as long as more is to follow in it, and is then made anew from the cells.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import torch

from kvd.kv import codec
from kvd.kv.pager import BlockAddress, Fetched, Pager, Tokens
from kvd.kv.pool import PoolFullError
from kvd.kv.store import StoredBlock


def address(pager: Pager, parent: bytes, tokens: Tokens, before: bytes) -> BlockAddress:
    """Of a block behind `parent`; `before` says what the prompt holds up to its last token."""
    digest = hashlib.blake2b(pager.fingerprint + parent + before, digest_size=32)
    digest.update(array("i", tokens).tobytes())
    return BlockAddress(digest.digest(), parent, tokens)


def seal(pager: Pager, block: BlockAddress, kv: torch.Tensor) -> StoredBlock:
    """The frame of a block for the cold store; `kv` is `[n_layer, 2, tokens, width]`, keys at position 0.

    Raises `BlockError` as `codec.encode` does.
    """
    kind = pager.codec if len(block.tokens) == codec.BLOCK_TOKENS else codec.F16
    frame = codec.encode(block.tokens, kv, kind)
    return StoredBlock(block.key, block.parent, pager.fingerprint, len(block.tokens), frame)


def fetch(pager: Pager, blocks: Sequence[BlockAddress]) -> Fetched:
    """The blocks that are in pool or store up to the first that is not, in the pool, pinned until `Pager.release`.

    Raises `PoolFullError`, with nothing left pinned.
    """
    found = Fetched()
    if not blocks:
        return found
    pager.pool.policy.wanted([block.key for block in blocks], None)
    frames = pager.read([block for block in blocks if block.key not in pager.pool])
    try:
        for block in blocks:
            tier, resident = "hot", pager.pool.get(block.key, block.tokens)
            if resident is None:
                tier, resident = "cold", pager.load(block, frames.get(block.key))
            if resident is None:
                break
            pager.pool.pin([resident])
            found.append(resident, tier)
    except PoolFullError:
        pager.release([found])
        raise
    pager.note_used(block.key for block, _ in zip(blocks, found.blocks, strict=False))
    return found
