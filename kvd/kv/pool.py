"""The hot tier: decoded blocks in one preallocated tensor, carved into pages.

A block in the pool is either whole, found by its content address and never written again, or the unfinished tail of
a sequence, which grows and is copied before it is written when two sequences share it.

Invariants (`check_integrity` proves them): every page is either free or in exactly one block's table; a block's
table has just enough pages for its tokens; allocation never moves data; a pinned block is never evicted, a leased one
only where there is no other room. Which of the others leave is up to a policy (`kvd.kv.policies`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kvd.errors import UsageError
from kvd.kv.guesses import LEASE_SECONDS, Clock, CoolDown, Leases
from kvd.kv.integrity import require
from kvd.kv.policies import LeastRecentlyUsed, Policy
from kvd.kv.rows import Rows
from kvd.types import KVShape

PAGE_TOKENS = 16
_AUTOMATIC_CAP = 2_000_000_000


def pool_bytes_for(shape: KVShape, n_ctx: int, wanted: int) -> int:
    """The pool's capacity: `wanted`, or for 0 an eighth of the free memory, at most 2 GB.

    A pool must hold what one full context can recall, or a prompt could not be put together. Raises `UsageError`
    when `wanted` is less than that.
    """
    # Blocks are at least half full of their 128 tokens but for the last of each body: a page in 64 tokens more.
    least = (n_ctx // PAGE_TOKENS + n_ctx // 64 + 64) * PAGE_TOKENS * shape.bytes_per_token
    if wanted and wanted < least:
        raise UsageError(
            f"pool_bytes = {wanted} is too small for this model and n_ctx = {n_ctx}",
            hint=f"set pool_bytes to at least {least} in config.toml, or a smaller n_ctx",
        )
    return wanted or max(least, min(free_memory() // 8, _AUTOMATIC_CAP))


def free_memory() -> int:
    """Bytes that can be taken without swapping, as far as the system tells; else half of what there is."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


class PoolFullError(Exception):
    """Everything in the pool is pinned, or the block is larger than the pool."""


@dataclass(slots=True, eq=False)
class Resident:
    """A block in the pool: its token ids, its block table (page numbers), and how many users pin it."""

    tokens: tuple[int, ...]
    pages: tuple[int, ...]
    pins: int = 0


class HotPool:
    """Blocks by content address; `policy` says which leave first, the least recently used where none is given.

    `capacity_bytes` is a hard cap; memory is taken once, at construction (untouched pages of host memory cost
    nothing until they are used). `clock` gives seconds, `page_tokens` is how many tokens a page holds.
    """

    def __init__(
        self,
        shape: KVShape,
        capacity_bytes: int,
        device: torch.device | None = None,
        policy: Policy | None = None,
        clock: Clock = time.monotonic,
        page_tokens: int = PAGE_TOKENS,
    ) -> None:
        self._page_bytes = page_tokens * shape.bytes_per_token
        self._shape, self.page_tokens = shape, page_tokens
        self._pages = torch.empty(
            (max(1, capacity_bytes // self._page_bytes), shape.n_layer, 2, page_tokens, shape.width),
            dtype=torch.float16,
            device=device,
        )
        self._free = list(range(len(self._pages)))
        self._blocks: dict[bytes, Resident] = {}
        self._tails: list[Resident] = []
        self.policy = policy or LeastRecentlyUsed()
        self._leases = Leases(clock)
        self.cooling_down = CoolDown(clock)
        self.evictions = 0

    @property
    def device(self) -> torch.device:
        """Where the blocks are."""
        return self._pages.device

    def touch(self, tokens: int) -> None:
        """Make the system hand out the memory that the next `tokens` will take."""
        for page in self._free[max(0, len(self._free) - tokens // self.page_tokens) :]:
            self._pages[page].zero_()

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks

    def get(self, key: bytes, tokens: Sequence[int]) -> Resident | None:
        """The block at `key` if it covers exactly `tokens`; that counts as a use."""
        block = self._blocks.get(key)
        if block is None or block.tokens != tuple(tokens):
            return None
        self.policy.used(key)
        return block

    def put(self, key: bytes, tokens: Sequence[int], kv: torch.Tensor) -> Resident:
        """Copy a decoded block in, making room if need be; `kv` is `[n_layer, 2, tokens, width]`.

        Raises `PoolFullError`; then nothing has changed but that a former block at `key` is gone.
        """
        if key in self._blocks:
            self.discard(key)
        block = Resident((), ())
        self._extend(block, tokens, kv)
        self._blocks[key] = block
        self.policy.added(key)
        return block

    def _extend(self, block: Resident, tokens: Sequence[int], kv: torch.Tensor) -> None:
        """Write `kv` behind what the block holds. Raises `PoolFullError`; the block is then as it was."""
        start, end = len(block.tokens), len(block.tokens) + len(tokens)
        pages = (*block.pages, *self._take(pages_for(end, self.page_tokens) - len(block.pages)))
        while start < end:
            page, slot = divmod(start, self.page_tokens)
            count = min(self.page_tokens - slot, end - start)
            taken = len(tokens) - (end - start)
            self._pages[pages[page], :, :, slot : slot + count] = kv[:, :, taken : taken + count]
            start += count
        block.tokens, block.pages = (*block.tokens, *tokens), pages

    def _take(self, pages: int) -> list[int]:
        self._make_room(pages)
        return [self._free.pop() for _ in range(pages)]

    # Tails

    def new_tail(self) -> Resident:
        """An empty block that grows, pinned by its one user."""
        tail = Resident((), (), 1)
        self._tails.append(tail)
        return tail

    def append(self, tail: Resident, tokens: Sequence[int], kv: torch.Tensor) -> Resident:
        """Write `kv` (`[n_layer, 2, tokens, width]`) behind the tail; the tail to use from now on.

        One that others share stays as it is for them, and its user gets a copy. Raises `PoolFullError`; then
        nothing has changed but that unpinned blocks may have been evicted.
        """
        if tail.pins == 1:
            self._extend(tail, tokens, kv)
            return tail
        own = Resident(tail.tokens, (), 1)
        own.pages = tuple(self._take(len(tail.pages)))
        for source, target in zip(tail.pages, own.pages, strict=True):
            self._pages[target] = self._pages[source]
        self._tails.append(own)
        try:
            self._extend(own, tokens, kv)
        except PoolFullError:
            self.release_tail(own)
            raise
        tail.pins -= 1
        return own

    def release_tail(self, tail: Resident) -> None:
        """One user less; the last one's pages are free again."""
        self.unpin([tail])
        if not tail.pins:
            self._tails.remove(tail)
            self._free.extend(tail.pages)

    def _make_room(self, pages: int) -> None:
        missing = pages - len(self._free)
        if missing > 0:
            for victim in self._victims(missing):
                self._evict(victim)

    def _victims(self, pages: int) -> list[bytes]:
        """The first blocks to leave that hold so many pages together, leased ones only where there are no others."""
        chosen = []
        for key in self._leases.leased_last(key for key in self.policy.victims() if not self._blocks[key].pins):
            chosen.append(key)
            pages -= len(self._blocks[key].pages)
            if pages <= 0:
                return chosen
        raise PoolFullError(f"no {pages} more pages can be freed")

    def _evict(self, key: bytes) -> None:
        self.discard(key)
        self.evictions += 1
        self.cooling_down.evicted(key)

    def discard(self, key: bytes) -> None:
        """Free a block's pages; raises `ValueError` if it is pinned."""
        if self._blocks[key].pins:
            raise ValueError("block is pinned")
        self._free.extend(self._blocks.pop(key).pages)
        self.policy.removed(key)
        self._leases.forget(key)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Free those blocks at `keys` that are here and that nobody pins."""
        for key in keys:
            if key in self._blocks and not self._blocks[key].pins:
                self.discard(key)

    def pin(self, blocks: Iterable[Resident]) -> None:
        for block in blocks:
            block.pins += 1

    def unpin(self, blocks: Iterable[Resident]) -> None:
        for block in blocks:
            if block.pins == 0:
                raise ValueError("block is not pinned")
            block.pins -= 1

    def lease(self, holder: Hashable, keys: Iterable[bytes], seconds: float = LEASE_SECONDS) -> None:
        """Keep those blocks at `keys` that are here for so long, instead of what `holder` leased before; none: end it.

        Where there is no other room they leave all the same, the oldest lease's first.
        """
        self._leases.start(holder, (key for key in keys if key in self._blocks), seconds)

    def spare_pages(self) -> int:
        """Pages that are free, or of blocks which nobody pins or leases."""
        leased = self._leases.keys()
        held = (block.pages for key, block in self._blocks.items() if not block.pins and key not in leased)
        return len(self._free) + sum(map(len, held))

    def content(self, block: Resident) -> torch.Tensor:
        """A copy of the block's KV: `[n_layer, 2, tokens, width]` float16."""
        pages = self._pages[list(block.pages)].permute(1, 2, 0, 3, 4)
        return pages.reshape(*pages.shape[:2], -1, self._shape.width)[:, :, : len(block.tokens)]

    def rows(self, blocks: Sequence[Resident]) -> Rows:
        """The tokens of `blocks` one after the other, to be read layer by layer."""
        return Rows(self._pages, torch.cat([self._first_rows(block) for block in blocks]).to(self._pages.device))

    def _first_rows(self, block: Resident) -> torch.Tensor:
        """Which of the pool's rows of `width` have the keys of layer 0 of each of the block's tokens: `[tokens]`."""
        rows_of_page = self._pages[0].numel() // self._shape.width
        starts = torch.tensor(block.pages, dtype=torch.int64) * rows_of_page
        return (starts.unsqueeze(1) + torch.arange(self.page_tokens)).flatten()[: len(block.tokens)]

    def stats(self) -> dict[str, int]:
        """`{"bytes", "used_bytes", "blocks", "leased", "tokens", "evictions"}`."""
        return {
            "bytes": len(self._pages) * self._page_bytes,
            "used_bytes": (len(self._pages) - len(self._free)) * self._page_bytes,
            "blocks": len(self._blocks) + len(self._tails),
            "leased": len(self._leases.keys()),
            "tokens": sum(len(block.tokens) for block in self.blocks()),
            "evictions": self.evictions,
        }

    def check_integrity(self) -> None:
        """Raises `IntegrityError` when free list, block tables, policy and leases disagree."""
        used = [page for block in self.blocks() for page in block.pages]
        require(sorted(used + self._free) == list(range(len(self._pages))), "a page is lost or held twice")
        proposed = list(self.policy.victims())
        require(sorted(proposed) == sorted(self._blocks), "the policy knows of other blocks than the pool")
        for block in self.blocks():
            wanted = pages_for(len(block.tokens), self.page_tokens)
            require(len(block.pages) == wanted, "a block table has a wrong length")
            require(block.pins >= 0, "negative pins")
        require(all(tail.pins for tail in self._tails), "a tail without users")
        require(self._leases.keys() <= self._blocks.keys(), "a lease on a block that is gone")

    def blocks(self) -> Iterator[Resident]:
        """Whole blocks, then tails."""
        yield from self._blocks.values()
        yield from self._tails


def pages_for(tokens: int, page_tokens: int = PAGE_TOKENS) -> int:
    """Pages that a block of so many tokens takes."""
    return -(-tokens // page_tokens)
