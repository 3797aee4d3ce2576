"""Pages of the hot pool: how full they are by their size, how long a prompt's tokens take to gather from them, and what
conversations with a common past share. Measured on the pool, pager and block tables that ship."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import torch

from kvd.bench.statistics import Estimate, median
from kvd.bench.text import counted, interval
from kvd.bench.traces import Say, Trace
from kvd.engine.machine import physical_cores
from kvd.kv.pager import Pager, split_body
from kvd.kv.pool import PAGE_TOKENS, HotPool, Resident, pages_for
from kvd.kv.store import BlockStore
from kvd.kv.table import BlockTable
from kvd.types import KVShape

PAGE_SIZES = (16, 32, 64, 128)
ASSEMBLED = 2000
"""Tokens of a prompt's bodies, about."""
CONVERSATIONS, PAST, OWN = 100, 1000, 40
"""Conversations, the tokens that they begin with, and those that each then says alone."""

_SHAPE = KVShape(n_layer=28, width=256)
"""Of Qwen2.5-Coder-1.5B."""
_NARROW = KVShape(n_layer=1, width=2)
"""Where only pages count; the codec packs two values to a byte."""
_HELD = 2 * ASSEMBLED
_SEED = 1


@dataclass(frozen=True, slots=True)
class _Filled:
    """A pool, and the blocks of each of its bodies."""

    pool: HotPool
    bodies: list[list[Resident]]


def measure(traces: Sequence[Trace], folder: Path, rounds: int, say: Say) -> dict[str, Any]:
    """Figures by page size for the traces' distinct chunks, and those of `sharing`; `folder` holds no store."""
    say("pages")
    sizes = list({chunk.id: chunk.tokens for trace in traces for chunk in trace.chunks}.values())
    times = assembling(sizes, rounds)
    return {
        "sizes": [
            {
                "page_tokens": page,
                "utilization": utilization(sizes, page),
                "assembled_tokens": tokens,
                "assemble_ms": milliseconds.to_json(),
            }
            for page, (tokens, milliseconds) in zip(PAGE_SIZES, times, strict=True)
        ],
        "bodies": len(sizes),
        "sharing": sharing(folder),
    }


def utilization(sizes: Sequence[int], page_tokens: int) -> float:
    """Tokens held by tokens that the pages have room for, of bodies of these sizes."""
    stats = _filled(_NARROW, sizes, page_tokens).pool.stats()
    return stats["tokens"] * _NARROW.bytes_per_token / stats["used_bytes"]


def _filled(shape: KVShape, sizes: Sequence[int], page_tokens: int) -> _Filled:
    """Bodies of these sizes, cut as the pager does, in a pool that has just enough room."""
    cut = [split_body(tuple(range(size))) for size in sizes]
    pages = sum(pages_for(len(tokens), page_tokens) for parts in cut for tokens in parts)
    pool = HotPool(shape, pages * page_tokens * shape.bytes_per_token, page_tokens=page_tokens)
    kv = torch.ones((shape.n_layer, 2, max(sizes), shape.width), dtype=torch.float16)
    bodies = [
        [pool.put(b"%d/%d" % (body, part), tokens, kv[:, :, : len(tokens)]) for part, tokens in enumerate(parts)]
        for body, parts in enumerate(cut)
    ]
    return _Filled(pool, bodies)


def assembling(sizes: Sequence[int], rounds: int) -> list[tuple[int, Estimate]]:
    """For each of `PAGE_SIZES` the tokens of a prompt and the median milliseconds to gather its keys and values.

    The prompt's bodies lie among as many others, in a pool of the 1.5B model's shape. Page sizes take turns.
    """
    torch.set_num_threads(physical_cores())
    random = Random(_SEED)
    shuffled = random.sample(sizes, len(sizes))
    held = _first(shuffled, _HELD)
    chosen = random.sample(range(len(held)), len(held))
    prompt = chosen[: len(_first([held[number] for number in chosen], ASSEMBLED))]
    tokens = sum(held[number] for number in prompt)
    room = torch.empty((2, tokens, _SHAPE.width), dtype=torch.float16)
    pools = [_filled(_SHAPE, held, page) for page in PAGE_SIZES]
    times: list[list[float]] = [[] for _ in pools]
    for count in range(rounds + 1):
        for taken, filled in zip(times, pools, strict=True):
            blocks = [block for number in prompt for block in filled.bodies[number]]
            started = perf_counter()
            _gather(filled.pool, blocks, room)
            # The first round is for caches and threads.
            taken += [(perf_counter() - started) * 1000] if count else []
    return [(tokens, median(taken)) for taken in times]


def _first(sizes: Sequence[int], tokens: int) -> list[int]:
    """The first sizes, up to so many tokens together; at least one of them."""
    total, count = 0, 0
    while count < len(sizes) and (not count or total + sizes[count] <= tokens):
        total, count = total + sizes[count], count + 1
    return list(sizes[:count])


def _gather(pool: HotPool, blocks: Sequence[Resident], room: torch.Tensor) -> None:
    """As a prompt is put together, the rotation of its keys left out."""
    rows = pool.rows(blocks)
    for layer in range(_SHAPE.n_layer):
        rows.keys(layer, room[0])
        rows.values(layer, room[1])


def sharing(folder: Path) -> list[dict[str, Any]]:
    """Bytes of pages that conversations with the same past take in the 1.5B model's shape, by how they came to it.

    "forked": from one that was told it; "told": each was told the same; "apart": what was said before differs, so that
    nothing can be shared.
    """
    # Tensors are tiny: threads cost more than they give.
    torch.set_num_threads(1)
    return [_shared(way, folder) for way in ("forked", "told", "apart")]


def _shared(way: str, folder: Path) -> dict[str, Any]:
    pages = 2 * CONVERSATIONS * pages_for(PAST + OWN)
    pool = HotPool(_NARROW, pages * PAGE_TOKENS * _NARROW.bytes_per_token)
    pager = Pager(pool, BlockStore(folder / "none.db", readonly=True), _NARROW, b"bench")
    past = tuple(range(PAST))
    kv = torch.linspace(-1, 1, PAST, dtype=torch.float16).reshape(1, 1, -1, 1).expand(1, 2, -1, _NARROW.width)
    tables = [BlockTable(pager)]
    tables[0].append(past, kv)
    for number in range(1, CONVERSATIONS):
        if way == "forked":
            tables.append(tables[0].fork())
        else:
            tables.append(BlockTable(pager, (number,) if way == "apart" else ()))
            tables[-1].append(past, kv)
    before = _wide(pool)
    for number, table in enumerate(tables):
        table.append(tuple(range(PAST + number, PAST + number + OWN)), kv[:, :, :OWN])
    pool.check_integrity()
    return {"way": way, "past_bytes": before, "bytes": _wide(pool)}


def _wide(pool: HotPool) -> int:
    """Bytes that the pages in use would take in the 1.5B model's shape."""
    return pool.stats()["used_bytes"] * _SHAPE.bytes_per_token // _NARROW.bytes_per_token


_WAYS = {"forked": "forked from one", "told": "each told the same", "apart": "nothing shared"}


def lines(result: dict[str, Any]) -> Iterator[str]:
    """Two tables."""
    sizes = result["sizes"]
    tokens = sizes[0]["assembled_tokens"]
    bodies = counted(result["bodies"], "body", "bodies")
    yield f"pages: {bodies}; gathering {tokens:,} tokens of the 1.5B model, in milliseconds [95 %]"
    yield f"{'tokens of a page':>16} {'utilization':>12} {'gathering':>24}"
    for row in sizes:
        gathering = interval(Estimate(*row["assemble_ms"]), ".1f")
        yield f"{row['page_tokens']:>16} {row['utilization']:>12.1%} {gathering:>24}"
    apart = result["sharing"][-1]
    yield f"{CONVERSATIONS} conversations that begin alike: pages of the 1.5B model's KV (of unshared)"
    yield f"{'':20} {f'after {PAST:,} tokens':>20} {f'after {OWN} more each':>20}"
    for row in result["sharing"]:
        shown = [f"{row[name] / 1e6:,.0f} MB ({row[name] / apart[name]:.1%})" for name in ("past_bytes", "bytes")]
        yield f"{_WAYS[row['way']]:20} {shown[0]:>20} {shown[1]:>20}"
