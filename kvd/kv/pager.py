"""Paging between the hot pool and the cold store: the only one that knows both tiers."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch

from kvd.kv import codec
from kvd.kv.bodies import Vector
from kvd.kv.codec import Codec
from kvd.kv.costs import Costs
from kvd.kv.pool import HotPool, PoolFullError, Resident
from kvd.kv.rows import Rows
from kvd.kv.spans import Spans
from kvd.kv.store import BlockStore, StoredBlock
from kvd.types import KVShape

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Body:
    """A chunk's tokens, and those that stand between the shared prefix and it while its KV is made.

    `vector` says what the chunk is about; it is for the pool's policy and decides nothing about reuse.
    """

    head: Tokens
    tokens: Tokens
    vector: Vector | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class BlockAddress:
    """Where a block is found: its content address, its parent's, and the tokens it covers."""

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


def split_body(tokens: Tokens) -> list[Tokens]:
    """Cut a body's tokens into blocks of nearly equal length, each at most `codec.BLOCK_TOKENS`.

    Equal parts rather than full ones and a rest: keys' scales cost the same for a short block as for a long one.
    """
    count = -(-len(tokens) // codec.BLOCK_TOKENS)
    bounds = [index * len(tokens) // count for index in range(count + 1)]
    return [tokens[start:end] for start, end in itertools.pairwise(bounds)]


class Pager:
    """Finds, loads and makes the blocks of one model.

    `fingerprint` says whose KV they are, codec and all; new blocks are encoded by `codec`. `costs` decides what is
    loaded and what is left to be computed; `spans` has the time for "read", "decompress" and "dequantize". `counts`
    has blocks that cells still held ("cells_hit"), the others as the pool had them ("hot_hit", "hot_miss"), the misses
    by what became of them ("cold_hit", "cold_miss", or "cold_declined" where `costs` was against loading), those loaded
    ("swapped_in"), and of these the ones that no question had asked for (`kvd.kv.prefetch`: "prefetched").
    """

    def __init__(
        self, pool: HotPool, store: BlockStore, shape: KVShape, fingerprint: bytes, codec: Codec = codec.DEFAULT
    ) -> None:
        self.pool, self._store, self._shape = pool, store, shape
        self.fingerprint, self.codec = fingerprint, codec
        self.costs, self.spans = Costs(), Spans()
        self.counts: Counter[str] = Counter()
        self._damaged: list[Damaged] = []
        self._used: set[bytes] = set()

    def addresses(self, body: Body) -> list[BlockAddress]:
        """The chain of blocks that cover `body`: each key hashes model, parent and token ids, the first one's head."""
        parent = self.root(body.head)
        chain = []
        for tokens in split_body(body.tokens):
            chain.append(self.address(parent, tokens))
            parent = chain[-1].key
        return chain

    def root(self, head: Tokens) -> bytes:
        """What stands in place of a block before the first one: a hash of the tokens that precede it."""
        return self._hash(bytes(32), head)

    def address(self, parent: bytes, tokens: Tokens) -> BlockAddress:
        return BlockAddress(self._hash(parent, tokens), parent, tokens)

    def _hash(self, parent: bytes, tokens: Tokens) -> bytes:
        digest = hashlib.blake2b(self.fingerprint + parent, digest_size=32)
        digest.update(array("i", tokens).tobytes())
        return digest.digest()

    def rehearse(self, tokens: int) -> None:
        """Take memory and start threads for a load of so many tokens now rather than while somebody waits for it."""
        self.pool.touch(tokens)
        shape = (self._shape.n_layer, 2, codec.BLOCK_TOKENS, self._shape.width)
        frame = codec.encode(range(codec.BLOCK_TOKENS), torch.zeros(shape, dtype=torch.float16), self.codec)
        codec.decode(frame, self._shape, self.pool.device)

    def fetch(
        self, bodies: Sequence[Body], question: Vector | None = None, resident: Sequence[Body] = ()
    ) -> list[Fetched | None]:
        """Bring a question's bodies into the pool from wherever they are; None for one that must be, or is better,
        computed.

        What is returned is pinned until `release`. `resident` bodies are in cells already and only count as used.
        Raises `PoolFullError`, with nothing left pinned.
        """
        everything = (*resident, *bodies)
        chains = [self.addresses(body) for body in everything]
        self.pool.policy.asked(question)
        for body, chain in zip(everything, chains, strict=True):
            self.pool.policy.wanted([link.key for link in chain], body.vector)
        for link in itertools.chain.from_iterable(chains[: len(resident)]):
            self.counts["cells_hit"] += 1
            self._used.add(link.key)
        # Guesses' leases give way before anything of this question does.
        self.pool.lease(self, (link.key for chain in chains for link in chain))
        try:
            return self._fetch_chains(chains[len(resident) :])
        finally:
            self.pool.lease(self, ())

    def fetch_made(self, body: Body) -> Fetched | None:
        """A body that a question wanted before and that was made meanwhile; otherwise as `fetch`."""
        return self._fetch_chains([self.addresses(body)])[0]

    def _fetch_chains(self, chains: Sequence[Sequence[BlockAddress]]) -> list[Fetched | None]:
        bodies_found: list[Fetched | None] = []
        for chain in chains:
            found = Fetched()
            bodies_found.append(found)
            try:
                complete = self._fetch_chain(chain, found)
            except PoolFullError:
                self.release(bodies_found)
                raise
            if not complete:
                self.release([found])
                bodies_found[-1] = None
        return bodies_found

    def _fetch_chain(self, chain: Sequence[BlockAddress], found: Fetched) -> bool:
        """Pin the blocks of one body one by one; false at the first that has to be computed."""
        started = perf_counter()
        hot = {link.key: block for link in chain if (block := self.pool.get(link.key, link.tokens)) is not None}
        missing = [link for link in chain if link.key not in hot]
        self.counts.update(hot_hit=len(hot), hot_miss=len(missing))
        if missing and not self.costs.loading_wins(sum(len(link.tokens) for link in missing)):
            self.counts["cold_declined"] += len(missing)
            return False
        frames = self.read(missing)
        self.counts.update(cold_hit=len(frames), cold_miss=len(missing) - len(frames))
        # What is loaded must not take the place of the rest of the same body.
        self.pool.pin(hot.values())
        try:
            for link in chain:
                tier, block = "hot", hot.get(link.key)
                if block is None:
                    tier, block = "cold", self.load(link, frames.get(link.key))
                if block is None:
                    return False
                self.pool.pin([block])
                found.append(block, tier)
        finally:
            self.pool.unpin(hot.values())
        if missing:
            self.costs.load.observe(found.count("cold", 0), perf_counter() - started)
        self.note_used(link.key for link in chain)
        return True

    def note_used(self, keys: Iterable[bytes]) -> None:
        """A question used these blocks."""
        self._used.update(keys)

    def read(self, links: Sequence[BlockAddress]) -> dict[bytes, bytes]:
        """The frames of those blocks that the store has, by key."""
        with self.spans.measure("read"):
            return self._store.get([link.key for link in links], self.fingerprint) if links else {}

    def load(self, link: BlockAddress, frame: bytes | None) -> Resident | None:
        """Put a block from its frame into the pool; None where there is no frame or it is damaged. Raises
        `PoolFullError`."""
        if frame is None:
            return None
        try:
            with self.spans.measure("decompress"):
                payload = codec.open_frame(frame, self._shape)
            if payload.tokens != link.tokens:
                raise codec.BlockError("token ids differ")
            # The unfinished last block of a conversation is not quantized.
            if payload.codec not in (self.codec, codec.F16):
                raise codec.BlockError("frame of another codec")
        except codec.BlockError as error:
            self._damaged.append(Damaged(link.key, str(error)))
            return None
        with self.spans.measure("dequantize"):
            block = self.pool.put(link.key, link.tokens, payload.dequantized(self.pool.device))
        self.counts["swapped_in"] += 1
        return block

    def add(self, body: Body, kv: torch.Tensor) -> tuple[Fetched, list[StoredBlock]]:
        """Encode a body's KV (`[n_layer, 2, tokens, width]`, keys at position 0) and pool what decodes from it.

        The pool gets the decoded form, so that an answer does not depend on which tier its blocks came from.
        Returns the pinned blocks and their frames for the cold store. Raises `PoolFullError`, with nothing pinned.
        """
        fetched, frames, start = Fetched(), [], 0
        for link in self.addresses(body):
            end = start + len(link.tokens)
            try:
                block, frame = self.seal(link, kv[:, :, start:end])
            except PoolFullError:
                self.release([fetched])
                raise
            fetched.append(block, "new")
            frames.append(frame)
            start = end
        return fetched, frames

    def seal(self, link: BlockAddress, kv: torch.Tensor) -> tuple[Resident, StoredBlock]:
        """Encode one block's KV and pool what decodes from it, pinned; raises `PoolFullError`."""
        frame = codec.encode(link.tokens, kv, self.codec)
        block = self.pool.get(link.key, link.tokens)
        if block is None:
            block = self.pool.put(link.key, link.tokens, codec.decode(frame, self._shape, self.pool.device).kv)
        self.pool.pin([block])
        return block, StoredBlock(link.key, link.parent, self.fingerprint, len(link.tokens), frame)

    def again(self, fetched: Fetched) -> Fetched:
        """A body that is in the pool and pinned already, once more: pinned twice, and hot."""
        self.pool.pin(fetched.blocks)
        return Fetched(list(fetched.blocks), ["hot"] * len(fetched.blocks))

    def rows(self, bodies: Sequence[Fetched]) -> Rows:
        """The tokens of several bodies one after the other, to be read layer by layer."""
        return self.pool.rows([block for body in bodies for block in body.blocks])

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
                self.pool.unpin(item.blocks)
