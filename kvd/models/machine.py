"""What this machine has, and which model suits it.

Looks only at what the system tells about itself: no model library is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvd.models.catalogue import (
    CATALOGUE,
    QWEN_CODER_05B,
    QWEN_CODER_7B,
    QWEN_CODER_15B,
    SMOLLM2_135M,
    CatalogueEntry,
)

_ROOMY_MEMORY = 7_500_000_000
"""What a machine or a GPU sold with 8 GB has at least."""

_ROOMY_CORES = 4
_PROBE_SECONDS = 5.0
_LIBRARIES = (".so", ".dylib", ".dll")
_GPU_BACKENDS = ("cuda", "hip", "metal", "vulkan", "sycl")


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory in bytes, within the limits of the container if there is one; cores are physical.

    `gpu_memory` is that of the largest GPU, 0 where there is none or it can't be told. `gpu_build` says
    whether the installed llama.cpp can use a GPU.
    """

    memory: int
    available: int
    cores: int
    gpu: str = ""
    gpu_memory: int = 0
    gpu_build: bool = True

    def describe(self) -> str:
        """`2 cores, 22.0 GB of 24.0 GB memory free, no GPU`"""
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        memory = f"{self.available / 1e9:.1f} GB of {self.memory / 1e9:.1f} GB memory free"
        if not self.gpu:
            return f"{cores}, {memory}, no GPU"
        gpu = f"{self.gpu} with {self.gpu_memory / 1e9:.0f} GB" if self.gpu_memory else self.gpu
        return f"{cores}, {memory}, {gpu}" + ("" if self.gpu_build else " (not used: llama.cpp is built without it)")


def choose(machine: Machine, *, hub: bool = True) -> CatalogueEntry:
    """The model for a machine; without `hub` only of those that a package index carries."""
    big_gpu = machine.gpu_build and machine.gpu_memory >= _ROOMY_MEMORY
    fast = big_gpu or machine.cores >= _ROOMY_CORES
    suits = [
        (QWEN_CODER_7B, big_gpu),
        (QWEN_CODER_15B, fast and machine.memory >= _ROOMY_MEMORY and _has_room(machine, QWEN_CODER_15B)),
        (QWEN_CODER_05B, _has_room(machine, QWEN_CODER_05B)),
    ]
    return next((entry for entry, fits in suits if fits and (hub or entry.packages)), SMOLLM2_135M)


def larger(entry: CatalogueEntry, machine: Machine) -> CatalogueEntry | None:
    """The next larger model, where the machine has room for it."""
    following = next((other for other in CATALOGUE if other.size > entry.size), None)
    return following if following and _has_room(machine, following) else None


def _has_room(machine: Machine, entry: CatalogueEntry) -> bool:
    return machine.available >= entry.min_memory


def probe(root: Path = Path("/")) -> Machine:
    """Look at the machine; what can't be found out counts as little. `root` is where /proc and /sys are."""
    gpu, gpu_memory = _gpu(root)
    if sys.platform == "darwin":
        memory = _sysctl("hw.memsize")
        return Machine(memory, memory // 2, _sysctl("hw.physicalcpu") or 1, gpu, gpu_memory, _has_gpu_build())
    memory, available = _memory(root)
    return Machine(memory, available, _cores(root), gpu, gpu_memory, _has_gpu_build())


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_SECONDS, check=True, text=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip()


def _sysctl(name: str) -> int:
    text = _run("/usr/sbin/sysctl", "-n", name)
    return int(text) if text.isdigit() else 0


def _memory(root: Path) -> tuple[int, int]:
    """All memory and what is free of it, in bytes."""
    kib = {}
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        kib[name] = int(rest.split()[0]) if rest.split() else 0
    total = kib.get("MemTotal", 0) * 1024
    available = kib.get("MemAvailable", kib.get("MemFree", 0)) * 1024
    for limit, used in _memory_limits(root):
        total = min(total, limit)
        available = min(available, max(limit - used, 0))
    return total, available


def _cgroups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """The folders of this process's control groups, up to the topmost, and whether they are of version 2."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, place = line.split(":", 2)
        unified = not names
        if not unified and controller not in names.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("" if unified else controller)
        # Inside a container the path may be the host's: what is missing is passed over, the top always tried.
        folder = top / place.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(top):
                yield group, unified


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    for group, unified in _cgroups(root, "memory"):
        limit = _number(group / ("memory.max" if unified else "memory.limit_in_bytes"))
        if limit is None:
            continue
        used = _number(group / ("memory.current" if unified else "memory.usage_in_bytes")) or 0
        # File pages that were not used lately count as used but are given up on demand.
        name = "inactive_file" if unified else "total_inactive_file"
        stats = dict(line.split(" ", 1) for line in _text(group / "memory.stat").splitlines() if " " in line)
        yield limit, max(used - int(stats.get(name, 0)), 0)


def _cores(root: Path) -> int:
    """Physical cores that this process may use: threads of one core count once, a quota rounds up."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    topology = root / "sys/devices/system/cpu"
    cores = {_text(topology / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in allowed}
    count = len(cores)
    for group, unified in _cgroups(root, "cpu"):
        if unified:
            quota, _, period = _text(group / "cpu.max").partition(" ")
        else:
            quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            count = min(count, -(-int(quota) // int(period)))
    return max(count, 1)


def _gpu(root: Path) -> tuple[str, int]:
    """Name and memory in bytes of the largest GPU; ("", 0) without one."""
    if sys.platform == "darwin":
        # Memory is shared with the processor; the system lets a GPU have about two thirds of it.
        apple = _sysctl("hw.optional.arm64") == 1
        return ("Apple GPU", _sysctl("hw.memsize") * 2 // 3) if apple else ("", 0)
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return "", 0
    found = parse_nvidia_smi(_run("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"))
    if found[0]:
        return found
    for information in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
        for line in _text(information).splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip(), 0
    return "", 0


def parse_nvidia_smi(output: str) -> tuple[str, int]:
    """The largest of the lines `name, MiB`."""
    found = [("", 0)]
    for line in output.splitlines():
        name, _, mebibytes = line.rpartition(",")
        if mebibytes.strip().isdigit():
            found.append((name.strip(), int(mebibytes) << 20))
    return max(found, key=lambda gpu: gpu[1])


def _has_gpu_build() -> bool:
    """Whether the installed llama.cpp has a GPU backend among its libraries."""
    from importlib import metadata

    try:
        files = metadata.distribution("llama-cpp-python").files or []
    except metadata.PackageNotFoundError:
        return False
    # Its headers name all backends.
    libraries = [file.name for file in files if file.suffix in _LIBRARIES or ".so." in file.name]
    return any(f"ggml-{backend}" in name for name in libraries for backend in _GPU_BACKENDS)
