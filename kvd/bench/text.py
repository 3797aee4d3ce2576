"""Numbers as the benchmarks' tables show them."""

from __future__ import annotations

from kvd.bench.statistics import Estimate


def counted(count: int, noun: str, nouns: str = "") -> str:
    """`1 trace`, `2 traces`; `nouns` where the plural has no mere s."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def interval(estimate: Estimate, spec: str) -> str:
    """The value, and its bounds where it has any: one measurement does not tell how far others would lie apart."""
    value, low, high = (format(part, spec) for part in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]" if estimate.low < estimate.high else value
