"""What `kvd bench pressure` measured, as a table for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvd.bench.pressure import SOURCES
from kvd.bench.text import counted


def lines(result: dict[str, Any]) -> Iterator[str]:
    """The table."""
    about, settings, tokens, blocks = (result[name] for name in ("about", "settings", "tokens", "blocks"))
    yield f"{about['command']}  ({about['date']})"
    yield f"{about['model']}, kvd {about['kvd']}, {about['engine']}, {about['machine']}"
    yield (
        f"{about['repository']}: {counted(result['asked'], 'question')} ({result['questions']} different ones) in "
        f"{result['seconds']:,.0f} s; pool of {settings['pool_tokens']:,} tokens ({_mb(settings['pool_bytes'])}), "
        f"context of {settings['n_ctx']:,}"
    )
    yield f"answered {result['answered']}, failed {result['failed']} {result['failures'] or ''}".rstrip()
    yield f"{'tokens recalled':24}{tokens['recalled']:>12,}"
    for source in SOURCES:
        yield f"  {source:22}{tokens[source]:>12,} {tokens[source] / max(1, tokens['recalled']):>7.1%}"
    yield f"{'distinct tokens':24}{result['distinct_tokens']:>12,}"
    yield f"{'prefilled again':24}{result['prefilled_again']:>12,}"
    yield (
        f"blocks: {blocks['hot_hit_rate']:.1%} hot ({blocks['hot_hits']:,} of "
        f"{blocks['hot_hits'] + blocks['hot_misses']:,} looked up), {blocks['evictions']:,} evicted, "
        f"{blocks['written']:,} written, {blocks['stored']:,} stored, {blocks['declined']:,} computed though stored, "
        f"{blocks['lost']:,} lost, {blocks['damaged']:,} damaged, {blocks['evicted_cold']:,} evicted from disk"
    )
    yield from memory_lines(result["memory"])


def memory_lines(memory: dict[str, Any] | None) -> Iterator[str]:
    """What `pressure.memory` found."""
    if memory is None:
        yield "memory: not known"
        return
    engine = memory["engine"]
    parts = ", ".join(f"{name} {_mb(engine[name])}" for name in ("weights", "cells", "pool", "fixed"))
    yield f"engine configured: {_mb(engine['configured'])} ({parts})"
    for name, item in memory.items():
        yield (
            f"{name}: {_mb(item['loaded'])} when loaded, at most {_mb(item['most'])} ({item['most_off']:+.1%}), "
            f"in the end {_mb(item['end'])} ({item['end_off']:+.1%})"
        )


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
