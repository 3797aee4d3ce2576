"""The page cache, what disk and memory of this machine can do, and what its processor is called."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from time import perf_counter

import torch

HOW_DROPPED = "posix_fadvise(DONTNEED) on the file; caches of the disk and of a virtual machine's host stay"

_CHUNK = 1 << 20


def drop_page_cache(file: Path) -> None:
    """Make the next read of `file` come from the disk, as far as an ordinary user can."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def disk_bytes_per_second(file: Path) -> float:
    """Sequential reading of `file` with its page cache dropped."""
    drop_page_cache(file)
    started, size = perf_counter(), 0
    with file.open("rb", buffering=0) as stream:
        while block := stream.read(_CHUNK):
            size += len(block)
    return size / (perf_counter() - started)


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown CPU"


def memory_bytes_per_second(megabytes: int = 256, rounds: int = 5) -> float:
    """Copying within memory, the best of a few rounds."""
    source = torch.ones(megabytes << 18, dtype=torch.float32)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(rounds):
        started = perf_counter()
        target.copy_(source)
        best = min(best, perf_counter() - started)
    return source.numel() * 4 / best
