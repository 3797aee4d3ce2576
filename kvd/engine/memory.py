"""Memory in use where the engine runs: the host's, and that of GPUs as ggml knows them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from llama_cpp._ggml import libggml

CPU_TYPE = 0
GPU_TYPES = (1, 2)
"""`enum ggml_backend_dev_type`: a GPU with memory of its own, and one that shares the host's."""

libggml.ggml_backend_dev_count.restype = ctypes.c_size_t
libggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
libggml.ggml_backend_dev_get.restype = ctypes.c_void_p
libggml.ggml_backend_dev_name.argtypes = [ctypes.c_void_p]
libggml.ggml_backend_dev_name.restype = ctypes.c_char_p
libggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
libggml.ggml_backend_dev_type.restype = ctypes.c_int
libggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2]
libggml.ggml_backend_dev_memory.restype = None


def memory_in_use() -> dict[str, int]:
    """Bytes by device: "host" is this process's resident memory; a GPU, under ggml's name, counts all processes."""
    return {**_resident(), **{name: total - free for name, (free, total) in device_memory(GPU_TYPES).items()}}


def device_memory(types: Iterable[int]) -> dict[str, tuple[int, int]]:
    """(free, total) bytes of each device of these types, by its name (`CUDA0`)."""
    found = {}
    for index in range(libggml.ggml_backend_dev_count()):
        device = libggml.ggml_backend_dev_get(index)
        if libggml.ggml_backend_dev_type(device) in types:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            libggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            found[libggml.ggml_backend_dev_name(device).decode("utf-8", "replace")] = (free.value, total.value)
    return found


def gpu_memory() -> list[int]:
    """Free bytes of each GPU that llama.cpp would use: those with memory of their own, else those that share it."""
    found = next(filter(None, (device_memory((kind,)) for kind in GPU_TYPES)), {})
    return [free for free, _ in found.values()]


def _resident() -> dict[str, int]:
    """Empty where the system does not say (macOS)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return {}
    return {"host": pages * os.sysconf("SC_PAGE_SIZE")}
