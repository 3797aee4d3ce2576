"""Threads: how many are worth starting, and how they wait for one another."""

from __future__ import annotations

import os
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def physical_cores() -> int:
    """Cores that this process may use, hyper-threads of one core counted once; at least 1.

    Two threads of one core share its vector units, so more threads make llama.cpp slower, not faster.
    """
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
    siblings = set()
    for cpu in usable:
        try:
            siblings.add((_TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            siblings.add(str(cpu))
    return max(1, len(siblings))


def wait_briefly() -> None:
    """Let threads that wait for others sleep soon. Call it before llama.cpp or torch is loaded.

    GNU OpenMP, which both are built with on Linux, spins for milliseconds by default. Beside one busy process on two
    cores that made decoding four times slower; on a quiet machine it gains nothing.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
