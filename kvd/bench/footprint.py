"""Memory of the daemon and its engine child, against what was configured. Linux only: elsewhere nothing is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes of a process that are in memory: now, and the most since its start."""

    now: int
    most: int


def resident(pid: int) -> Resident | None:
    """None where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        now, most = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    except (OSError, KeyError, ValueError):
        return None
    return Resident(now, most)


@dataclass(frozen=True, slots=True)
class Configured:
    """What an engine should take, in bytes: the file of the weights, the cells, the pool, and the `fixed` rest."""

    weights: int
    cells: int
    pool: int
    fixed: int

    @property
    def total(self) -> int:
        return self.weights + self.cells + self.pool + self.fixed

    def to_json(self) -> dict[str, int]:
        parts = ("weights", "cells", "pool", "fixed")
        return {**{name: getattr(self, name) for name in parts}, "configured": self.total}


def configured(weights: int, cells: int, pool: int, pool_in_use: int, loaded: Resident) -> Configured:
    """The rest is what is `loaded` right after loading beside weights, cells and the part of the pool `pool_in_use`:
    libraries, buffers for computing and for a prompt's state."""
    return Configured(weights, cells, pool, loaded.now - weights - cells - pool_in_use)


def compared(loaded: Resident, end: Resident, expected: int) -> dict[str, Any]:
    """Bytes, and how far the most and the end are above (or, negative, below) what was expected, as shares of that."""
    return {
        "loaded": loaded.now,
        "end": end.now,
        "most": end.most,
        "end_off": end.now / expected - 1,
        "most_off": end.most / expected - 1,
    }
