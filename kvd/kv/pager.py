"""Paging between the hot pool and the cold store: the only one that knows both tiers."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kvd.kv import codec
from kvd.kv.pool import HotPool, PoolFullError, Resident, Rows
from kvd.kv.store import BlockStore, StoredBlock
from kvd.types import KVShape

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockAddress:
    """Where a block is found: its content address, that of the block before it, and the tokens it covers."""

    key: bytes
    parent: bytes
    tokens: Tokens


@dataclass(slots=True)
class Fetched:
    """The blocks of one body in the pool, pinned, and where each was: "hot", "cold" or "new"."""

    blocks: list[Resident] = field(default_factory=list)
    tiers: list[str] = field(default_factory=list)

    def append(self, block: Resident, tier: str) -> None:
        self.blocks.append(block)
        self.tiers.append(tier)

    def count(self, tier: str, skip: int) -> int:
        """Tokens that came from `tier`, the first `skip` tokens of the body left out."""
        total, start = 0, 0
        for block, found in zip(self.blocks, self.tiers, strict=True):
            end = start + len(block.tokens)
            total += max(0, end - max(start, skip)) if found == tier else 0
            start = end
        return total


@dataclass(frozen=True, slots=True)
class Damaged:
    """A stored block that failed its check."""

    key: bytes
    reason: str


def split_body(body: Tokens) -> list[Tokens]:
    """Cut a body into blocks of nearly equal length, each at most `codec.BLOCK_TOKENS`.

    Equal parts rather than full ones and a rest: keys' scales cost the same for a short block as for a long one.
    """
    count = -(-len(body) // codec.BLOCK_TOKENS)
    bounds = [index * len(body) // count for index in range(count + 1)]
    return [body[start:end] for start, end in itertools.pairwise(bounds)]


class Pager:
    """Finds, loads and makes the blocks of one model. `fingerprint` says whose KV they are."""

    def __init__(self, pool: HotPool, store: BlockStore, shape: KVShape, fingerprint: bytes) -> None:
        self._pool, self._store, self._shape = pool, store, shape
        self._fingerprint = fingerprint
        self._damaged: list[Damaged] = []
        self._used: set[bytes] = set()

    def addresses(self, body: Tokens) -> list[BlockAddress]:
        """The chain of blocks that cover `body`: each key hashes model, parent and token ids."""
        parent = bytes(32)
        chain = []
        for tokens in split_body(body):
            digest = hashlib.blake2b(self._fingerprint + parent, digest_size=32)
            digest.update(array("i", tokens).tobytes())
            chain.append(BlockAddress(digest.digest(), parent, tokens))
            parent = digest.digest()
        return chain

    def fetch(self, bodies: Sequence[Tokens]) -> list[Fetched | None]:
        """Bring bodies into the pool from wherever they are; None for one that must be computed.

        What is returned is pinned until `release`. Raises `PoolFullError`, with nothing left pinned.
        """
        chains = [self.addresses(body) for body in bodies]
        frames = self._read([link.key for chain in chains for link in chain])
        bodies_found: list[Fetched | None] = []
        for chain in chains:
            found = Fetched()
            bodies_found.append(found)
            try:
                complete = self._fetch_chain(chain, frames, found)
            except PoolFullError:
                self.release(bodies_found)
                raise
            if not complete:
                self.release([found])
                bodies_found[-1] = None
        return bodies_found

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        missing = list(dict.fromkeys(key for key in keys if key not in self._pool))
        return self._store.get(missing, self._fingerprint) if missing else {}

    def _fetch_chain(self, chain: Sequence[BlockAddress], frames: dict[bytes, bytes], found: Fetched) -> bool:
        """Pin the blocks of one body one by one; false at the first that has to be computed."""
        for link in chain:
            tier, block = "hot", self._pool.get(link.key, link.tokens)
            if block is None:
                tier, block = "cold", self._load(link, frames.get(link.key))
            if block is None:
                return False
            self._pool.pin([block])
            found.append(block, tier)
        self._used.update(link.key for link in chain)
        return True

    def _load(self, link: BlockAddress, frame: bytes | None) -> Resident | None:
        if frame is None:
            return None
        try:
            block = codec.decode(frame, self._shape)
            if block.tokens != link.tokens:
                raise codec.BlockError("token ids differ")
        except codec.BlockError as error:
            self._damaged.append(Damaged(link.key, str(error)))
            return None
        return self._pool.put(link.key, link.tokens, block.kv)

    def add(self, body: Tokens, kv: torch.Tensor) -> tuple[Fetched, list[StoredBlock]]:
        """Encode a body's KV (`[n_layer, 2, tokens, width]`, keys at position 0) and pool what decodes from it.

        The pool gets the decoded form, so that an answer does not depend on which tier its blocks came from.
        Returns the pinned blocks and their frames for the cold store. Raises `PoolFullError`, with nothing pinned.
        """
        fetched, frames, start = Fetched(), [], 0
        for link in self.addresses(body):
            end = start + len(link.tokens)
            frame = codec.encode(link.tokens, kv[:, :, start:end])
            block = self._pool.get(link.key, link.tokens)
            if block is None:
                block = self._put(link, codec.decode(frame, self._shape).kv, fetched)
            self._pool.pin([block])
            fetched.append(block, "new")
            frames.append(StoredBlock(link.key, link.parent, self._fingerprint, len(link.tokens), frame))
            start = end
        return fetched, frames

    def _put(self, link: BlockAddress, kv: torch.Tensor, pinned: Fetched) -> Resident:
        """Pool a block; when there is no room, let go of what was `pinned` for the same body."""
        try:
            return self._pool.put(link.key, link.tokens, kv)
        except PoolFullError:
            self.release([pinned])
            raise

    def rows(self, bodies: Sequence[Fetched]) -> Rows:
        """The tokens of several bodies one after the other, to be read layer by layer."""
        return self._pool.rows([block for body in bodies for block in body.blocks])

    def take_damaged(self) -> list[Damaged]:
        """Blocks found damaged since the last call, to be dropped from the store."""
        damaged, self._damaged = self._damaged, []
        return damaged

    def take_used(self) -> set[bytes]:
        """Keys of blocks found since the last call, to be marked as used in the store."""
        used, self._used = self._used, set()
        return used

    def release(self, fetched: Sequence[Fetched | None]) -> None:
        """Unpin what `fetch` or `add` gave."""
        for item in fetched:
            if item is not None:
                self._pool.unpin(item.blocks)
