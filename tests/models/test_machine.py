from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import ClassVar

import pytest

from kvd.models.catalogue import CATALOGUE
from kvd.models.machine import Machine, _has_gpu_build, choose, larger, parse_nvidia_smi, probe

GB = 10**9
SMALL, HALF, MIDDLE, LARGE = (entry.name for entry in CATALOGUE)


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        (Machine(memory=1 * GB, available=800_000_000, cores=8), SMALL),
        (Machine(memory=64 * GB, available=1 * GB, cores=8), SMALL),
        (Machine(memory=2 * GB, available=1_600_000_000, cores=1), HALF),
        (Machine(memory=24 * GB, available=22 * GB, cores=2), HALF),
        (Machine(memory=24 * GB, available=22 * GB, cores=3), HALF),
        (Machine(memory=6 * GB, available=5 * GB, cores=8), HALF),
        (Machine(memory=16 * GB, available=2 * GB, cores=8), HALF),
        # 8 GB on the box are 7.6 GB to the system.
        (Machine(memory=7_600_000_000, available=5 * GB, cores=4), MIDDLE),
        (Machine(memory=64 * GB, available=60 * GB, cores=32), MIDDLE),
        (Machine(memory=64 * GB, available=60 * GB, cores=8, gpu="A", gpu_memory=6 * GB), MIDDLE),
        (Machine(memory=64 * GB, available=60 * GB, cores=8, gpu="A", gpu_memory=8 * GB), LARGE),
        (Machine(memory=64 * GB, available=60 * GB, cores=2, gpu="A", gpu_memory=24 * GB), LARGE),
        (
            Machine(memory=64 * GB, available=60 * GB, cores=8, gpu="A", gpu_memory=24 * GB, gpu_build=False),
            MIDDLE,
        ),
        (
            Machine(memory=64 * GB, available=60 * GB, cores=2, gpu="A", gpu_memory=24 * GB, gpu_build=False),
            HALF,
        ),
    ],
)
def test_the_model_suits_the_machine(machine: Machine, name: str) -> None:
    assert choose(machine).name == name


def test_without_the_hub_only_what_an_index_carries_is_chosen() -> None:
    machine = Machine(memory=64 * GB, available=60 * GB, cores=2, gpu="A", gpu_memory=24 * GB)
    assert choose(machine).name == LARGE
    assert choose(machine, hub=False).name == MIDDLE


def test_the_machine_is_described_in_words() -> None:
    machine = Machine(memory=8 * GB, available=5_260_000_000, cores=1)
    assert machine.describe() == "1 core, 5.3 GB of 8.0 GB memory free, no GPU"
    machine = Machine(8 * GB, 5 * GB, 4, "Great GPU", 24 * GB, gpu_build=False)
    assert machine.describe().endswith(
        "4 cores, 5.0 GB of 8.0 GB memory free, Great GPU with 24 GB (not used: llama.cpp is built without it)"
    )


def test_the_catalogue_is_complete() -> None:
    assert [entry.size for entry in CATALOGUE] == sorted(entry.size for entry in CATALOGUE)
    for entry in CATALOGUE:
        assert re.fullmatch("[0-9a-f]{64}", entry.sha256)
        assert entry.hub_url or entry.packages
        assert not entry.hub_url or entry.hub_url.startswith("https://huggingface.co/Qwen/")
        assert not entry.hub_url or entry.hub_url.endswith(f"/{entry.file}")
        assert entry.packages is None or all("==" in name for name in entry.packages.requirements)
    assert len({entry.file for entry in CATALOGUE}) == len(CATALOGUE)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MEMINFO = "MemTotal:       16000000 kB\nMemFree:         100000 kB\nMemAvailable:   12000000 kB\n"

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells")


@linux
@pytest.mark.parametrize(
    ("files", "memory", "available"),
    [
        ({}, 16_384_000_000, 12_288_000_000),
        (
            {
                "proc/self/cgroup": "0::/user/kvd\n",
                "sys/fs/cgroup/user/kvd/memory.max": "max\n",
                "sys/fs/cgroup/user/memory.max": "4000000000\n",
                "sys/fs/cgroup/user/memory.current": "1500000000\n",
                "sys/fs/cgroup/user/memory.stat": "anon 1000000000\ninactive_file 500000000\n",
            },
            4 * GB,
            3 * GB,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "2500000000\n",
            },
            2 * GB,
            0,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            16_384_000_000,
            12_288_000_000,
        ),
    ],
)
def test_memory_respects_the_container(tmp_path: Path, files: dict[str, str], memory: int, available: int) -> None:
    write(tmp_path, {"proc/meminfo": MEMINFO, **files})
    machine = probe(tmp_path)
    assert (machine.memory, machine.available) == (memory, available)


@linux
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 4),
        ({f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": f"{n % 2}-x" for n in range(4)}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 4),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
    ],
)
def test_cores_are_physical_and_within_the_quota(
    tmp_path: Path, files: dict[str, str], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    write(tmp_path, {"proc/meminfo": MEMINFO, **files})
    assert probe(tmp_path).cores == cores


def test_the_largest_gpu_counts() -> None:
    assert parse_nvidia_smi("NVIDIA T4, 15360\nNVIDIA L4, 23034\n") == ("NVIDIA L4", 23034 << 20)
    assert parse_nvidia_smi("NVIDIA H200, [N/A]\n") == ("", 0)
    assert parse_nvidia_smi("") == ("", 0)


@linux
def test_a_driver_without_its_tool_tells_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    write(tmp_path, {"proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA L4\nIRQ: 1\n"})
    assert (probe(tmp_path).gpu, probe(tmp_path).gpu_memory) == ("NVIDIA L4", 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert probe(tmp_path).gpu == ""


def test_this_machine_can_be_looked_at_without_loading_a_model_library() -> None:
    script = (
        "import sys; from kvd.models.machine import probe; machine = probe(); "
        "assert machine.memory >= machine.available > 0 and machine.cores >= 1, machine; "
        "assert not {'torch', 'llama_cpp', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_gpu_build_has_a_library_for_it_and_not_its_header_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        files: ClassVar[list[Path]] = []

    monkeypatch.setattr(metadata, "distribution", lambda name: Installed)
    for name, has in (
        ("include/ggml-cuda.h", False),
        ("lib/libggml-cpu.so", False),
        ("lib/libggml-cuda.so", True),
        ("lib/libggml-vulkan.so.0", True),
        ("lib/libggml-metal.dylib", True),
    ):
        Installed.files = [Path("include/ggml-metal.h"), Path(name)]
        assert _has_gpu_build() is has


def test_the_next_larger_model_where_there_is_room() -> None:
    machine = Machine(memory=24 * GB, available=20 * GB, cores=2)
    assert [larger(entry, machine) for entry in CATALOGUE] == [*CATALOGUE[1:], None]
    assert larger(CATALOGUE[1], Machine(memory=4 * GB, available=2 * GB, cores=2)) is None
