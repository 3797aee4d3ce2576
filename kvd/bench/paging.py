"""`kvd bench paging`: how often recalled code is still in the hot pool, by eviction policy, on traces of questions.

What is simulated is the pool and the policies that ship; only the KV in it is one value wide.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from time import process_time
from typing import Any

import numpy as np
import torch

from kvd.bench.statistics import mean
from kvd.bench.text import counted, interval
from kvd.bench.traces import Ask, Say, Trace
from kvd.kv.pager import split_body
from kvd.kv.policies import Policy, policy_named
from kvd.kv.pool import PAGE_TOKENS, HotPool, Resident, pages_for
from kvd.types import KVShape

BELADY, BOUND = "belady", "bound"
"""The row of the bound: in JSON, and as people read it."""

_NARROW = KVShape(n_layer=1, width=1)


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds: of a token that is hot, cold (loaded from disk) or new (computed), and of the rest of a prompt.

    The defaults are of one run with Qwen2.5-Coder-1.5B on two cores (`kvd bench kv --timed 5`, 2026-11-30): rotate and
    set over 1,900 tokens; with read, decompress and dequantize; the full prefill's 56,871 ms over some 2,130 tokens;
    heads and question.
    """

    hot: float = 0.027
    cold: float = 0.18
    new: float = 26.7
    rest: float = 4544.0

    def ttft(self, hot: float, cold: float, new: float) -> float:
        return self.rest + hot * self.hot + cold * self.cold + new * self.new


@dataclass(slots=True)
class Outcome:
    """What a policy did on a trace. A body is hot when all of its tokens were in the pool."""

    tokens: int = 0
    hot_tokens: float = 0.0
    bodies: int = 0
    hot_bodies: int = 0
    evictions: int = 0
    seconds: float = 0.0
    """Of the CPU, spent in pool and policy."""
    ttft: list[float] = field(default_factory=list)
    """Milliseconds by question."""

    def count(self, costs: Costs, tokens: Sequence[int], hot: Sequence[float], new: Sequence[bool]) -> None:
        """Add a question's bodies: their tokens, how many of them were hot, and which no question wanted before."""
        computed = sum(size for size, is_new in zip(tokens, new, strict=True) if is_new)
        self.tokens += sum(tokens)
        self.hot_tokens += sum(hot)
        self.bodies += len(tokens)
        self.hot_bodies += sum(found == size for size, found in zip(tokens, hot, strict=True))
        self.ttft.append(costs.ttft(sum(hot), sum(tokens) - sum(hot) - computed, computed))

    def figures(self) -> dict[str, float]:
        return {
            "hit_rate": self.hot_tokens / self.tokens,
            "body_hit_rate": self.hot_bodies / self.bodies,
            "ttft_median_ms": float(np.median(self.ttft)),
            "ttft_p95_ms": float(np.quantile(self.ttft, 0.95)),
            "evictions": self.evictions,
            "us_per_question": self.seconds * 1e6 / len(self.ttft),
        }


def pages_of(tokens: int) -> int:
    """Pages that a body of so many tokens takes."""
    return sum(pages_for(len(block)) for block in split_body(tuple(range(tokens))))


def capacity_pages(trace: Trace, share: float) -> int:
    """The cap: a share of the pages that all of a trace's chunks would take, at least what one question wants."""
    sizes = [pages_of(chunk.tokens) for chunk in trace.chunks]
    least = max(sum(sizes[number] for number in ask.chunks) for ask in trace.asks)
    return max(least, math.floor(sum(sizes) * share))


def simulate(trace: Trace, policy: Policy, pages: int, costs: Costs) -> Outcome:
    """Run a trace through the real pool with room for so many pages."""
    pool = HotPool(_NARROW, pages * PAGE_TOKENS * _NARROW.bytes_per_token, policy=policy)
    kv = torch.zeros((1, 2, max(chunk.tokens for chunk in trace.chunks), 1), dtype=torch.float16)
    bodies = [_addressed(number, chunk.tokens) for number, chunk in enumerate(trace.chunks)]
    outcome, seen = Outcome(), set[int]()
    for ask in trace.asks:
        started = process_time()
        policy.asked(ask.vector)
        for number in ask.chunks:
            policy.wanted(list(bodies[number]), trace.chunks[number].vector)
        hot, pinned = [], list[Resident]()
        for number in ask.chunks:
            hot.append(0.0)
            for key, tokens in bodies[number].items():
                found = pool.get(key, tokens)
                hot[-1] += len(tokens) if found else 0
                pinned.append(found or pool.put(key, tokens, kv[:, :, : len(tokens)]))
                pool.pin(pinned[-1:])
        pool.unpin(pinned)
        outcome.seconds += process_time() - started
        outcome.count(costs, [trace.chunks[number].tokens for number in ask.chunks], hot, _new(ask, seen))
    outcome.evictions = pool.evictions
    return outcome


def _addressed(number: int, tokens: int) -> dict[bytes, tuple[int, ...]]:
    """The blocks of chunk `number`, cut as the pager does."""
    parts = split_body(tuple(range(tokens)))
    return {struct.pack("<II", number, index): part for index, part in enumerate(parts)}


def _new(ask: Ask, seen: set[int]) -> list[bool]:
    """Which of a question's chunks no question wanted before; they are `seen` then."""
    new = [number not in seen for number in ask.chunks]
    seen.update(ask.chunks)
    return new


def belady(trace: Trace, pages: int, costs: Costs) -> Outcome:
    """The most tokens that any policy could find hot: what is wanted again last leaves first (Belady 1966, MIN).

    It takes bodies apart page by page, which makes all that can leave of one size, so that the rule is optimal although
    bodies are not; a page is worth the tokens in it, nearly as many in all of them. Policies have to move whole blocks.
    """
    sizes = [pages_of(chunk.tokens) for chunk in trace.chunks]
    held, next_use = [0] * len(sizes), [0] * len(sizes)
    leaving: list[tuple[int, int]] = []
    outcome, seen, free = Outcome(), set[int](), pages
    for ask, following in zip(trace.asks, _next_uses(trace), strict=True):
        hot = [trace.chunks[number].tokens * held[number] / sizes[number] for number in ask.chunks]
        outcome.count(costs, [trace.chunks[number].tokens for number in ask.chunks], hot, _new(ask, seen))
        needed = sum(sizes[number] - held[number] for number in ask.chunks)
        while free < needed:
            # What this question wants has the nearest next use, now: it would be the last to leave.
            again, number = heapq.heappop(leaving)
            if next_use[number] != -again or not held[number]:
                continue
            taken = min(held[number], needed - free)
            held[number], free = held[number] - taken, free + taken
            outcome.evictions += 1
            if held[number]:
                heapq.heappush(leaving, (again, number))
        free -= needed
        for number, again in zip(ask.chunks, following, strict=True):
            held[number], next_use[number] = sizes[number], again
            heapq.heappush(leaving, (-again, number))
    return outcome


def _next_uses(trace: Trace) -> list[list[int]]:
    """For each question and each of its chunks the next question that wants it, or the number of questions."""
    following, found = dict[int, int](), list[list[int]]()
    for index in range(len(trace.asks) - 1, -1, -1):
        chunks = trace.asks[index].chunks
        found.append([following.get(number, len(trace.asks)) for number in chunks])
        following.update(dict.fromkeys(chunks, index))
    return found[::-1]


def compare(traces: Sequence[Trace], names: Sequence[str], share: float, costs: Costs, say: Say) -> dict[str, Any]:
    """A row for each policy and one for the bound: figures by trace."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in (*names, BELADY)}
    pages = [capacity_pages(trace, share) for trace in traces]
    for count, (trace, room) in enumerate(zip(traces, pages, strict=True), start=1):
        bound = belady(trace, room, costs)
        rows[BELADY].append({**bound.figures(), "of_belady": 1.0})
        for name in names:
            say(f"trace {count}/{len(traces)}: {name}")
            done = simulate(trace, policy_named(name), room, costs)
            rows[name].append({**done.figures(), "of_belady": done.hot_tokens / max(1.0, bound.hot_tokens)})
    return {
        "share": share,
        "costs": asdict(costs),
        "traces": [
            {**trace.about(), "pool_tokens": room * PAGE_TOKENS} for trace, room in zip(traces, pages, strict=True)
        ],
        "rows": [{"name": name, "figures": figures} for name, figures in rows.items()],
    }


def lines(result: dict[str, Any]) -> Iterator[str]:
    """The table."""
    means = {name: mean([trace[name] for trace in result["traces"]]).value for name in _COUNTS}
    count = len(result["traces"])
    yield f"{counted(count, 'trace')}{', means' if count > 1 else ''}: " + ", ".join(
        f"{means[name]:,.0f} {words}" for name, words in _COUNTS.items()
    )
    over = "; means over the traces [95 %]" if count > 1 else ""
    yield f"pool of {result['share']:.0%} of the distinct tokens{over}"
    yield (
        f"{'':10} {'hot tokens':22} {'of the bound':22} {'whole bodies hot':>16} {'median TTFT':>12} {'p95':>10} "
        f"{'evictions':>10}"
    )
    spent = []
    for row in result["rows"]:
        figures = {name: mean([entry[name] for entry in row["figures"]]) for name in row["figures"][0]}
        # The bound counts bodies that lost something, not blocks, and is computed without a pool.
        ours = row["name"] != BELADY
        evictions = f"{figures['evictions'].value:,.0f}" if ours else ""
        spent += [f"{row['name']} {figures['us_per_question'].value:,.0f} us"] if ours else []
        yield (
            f"{row['name'] if ours else BOUND:10} {interval(figures['hit_rate'], '.1%'):22} "
            f"{interval(figures['of_belady'], '.1%'):22} {figures['body_hit_rate'].value:>16.1%} "
            f"{figures['ttft_median_ms'].value:>9,.0f} ms {figures['ttft_p95_ms'].value:>7,.0f} ms {evictions:>10}"
        )
    yield f"CPU of pool and policy for a question: {', '.join(spent)}"


_COUNTS = {"questions": "questions", "tokens": "tokens recalled", "distinct_tokens": "of them distinct"}
