"""What a day's run notes, and its result as figures and lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvd.bench.about import about
from kvd.bench.statistics import median


@dataclass(slots=True)
class Diary:
    """What happened: requests by method and outcome with their seconds, changes, and what was wrong."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    changes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[int, int, int]] = field(default_factory=list)
    """Requests so far, and bytes of daemon and engine, while nobody was killed."""

    def note(self, method: str, outcome: str, seconds: float) -> None:
        self.outcomes[method, outcome] += 1
        self.seconds.setdefault(method, []).append(seconds)

    def result(self, command: str, seconds: float) -> dict[str, Any]:
        """The run of `command`, which took so long, as it is written to files."""
        return {
            "about": about(command),
            "seconds": seconds,
            "requests": [self._figures(method) for method in sorted(self.seconds)],
            "changes": dict(self.changes),
            "wrong": self.wrong,
            "memory": {
                name: slope([(done, sizes[place]) for done, *sizes in self.memory])
                for place, name in enumerate(("daemon", "engine"))
            },
        }

    def _figures(self, method: str) -> dict[str, Any]:
        times = self.seconds[method]
        return {
            "method": method,
            "outcomes": {end: count for (name, end), count in self.outcomes.items() if name == method},
            "median_ms": median(times).value * 1000,
            "p95_ms": float(np.quantile(times, 0.95)) * 1000,
        }


def slope(points: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Bytes that grow with each request by least squares over the second half, its standard error, and the last bytes.

    The first half is left out: caches fill.
    """
    later = points[len(points) // 2 :]
    if len(later) < 3:
        return {}
    x, y = (np.array(values, np.float64) for values in zip(*later, strict=True))
    x -= x.mean()
    growth = float((x * y).sum() / (x * x).sum())
    rest = y - y.mean() - growth * x
    error = float(np.sqrt((rest * rest).sum() / (len(x) - 2) / (x * x).sum()))
    return {"bytes_a_request": growth, "error": error, "bytes": float(y[-1]), "points": len(later)}


def lines(result: dict[str, Any]) -> Iterator[str]:
    """What happened, as a table and a few lines."""
    head = result["about"]
    yield f"kvd {head['kvd']}, {head['machine']}, {head['date']}: {result['seconds'] / 60:.1f} minutes"
    yield ""
    yield "| | requests | ok | median | 95 % within | otherwise |"
    yield "|---|---|---|---|---|---|"
    for row in result["requests"]:
        outcomes = dict(row["outcomes"])
        count, good = sum(outcomes.values()), outcomes.pop("ok", 0)
        others = ", ".join(f"{number} {name}" for name, number in sorted(outcomes.items()))
        yield f"| {row['method']} | {count} | {good} | {row['median_ms']:.0f} ms | {row['p95_ms']:.0f} ms | {others} |"
    yield ""
    yield ", ".join(f"{count} {name}" for name, count in sorted(result["changes"].items()))
    yield f"wrong: {len(result['wrong'])}"
    yield from result["wrong"]
    for name, memory in result["memory"].items():
        if memory:
            growth, error = memory["bytes_a_request"] / 1000, 1.96 * memory["error"] / 1000
            yield f"{name}: {memory['bytes'] / 1e6:.0f} MB, {growth:+.1f} kB a request (+-{error:.1f})"
