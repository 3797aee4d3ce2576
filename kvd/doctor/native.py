"""Native code, each piece tried in a process of its own: what does not fit the machine ends only that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from kvd.config import DEFAULT_EMBEDDER
from kvd.doctor.finding import Finding, fault, note, ok
from kvd.ends import REINSTALL, describe_end, end_hint
from kvd.errors import ModelError
from kvd.models.active import ActiveModel
from kvd.models.embedding import read_embedding_model

_SECONDS = 120.0
"""A model of several GB comes from a slow disk in this time."""

_CPU_FLAGS = {
    "SSE3": "pni",
    "SSSE3": "ssse3",
    "AVX": "avx",
    "AVX_VNNI": "avx_vnni",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
}
"""What ggml calls what it was built to use on x86-64, and the kernel's word for it in /proc/cpuinfo."""

_FAST = "AVX2"
"""Without it a prefill takes several times as long."""


class TrialError(Exception):
    """A trial ended without a result; `hint` is what may help."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def sqlite() -> list[Finding]:
    """SQLite and sqlite-vec."""
    try:
        found = trial("kvd.recall.checkup")
    except TrialError as error:
        return [fault("sqlite", str(error), error.hint)]
    return [ok("sqlite", f"{found['sqlite']} with FTS5"), ok("sqlite-vec", found["vec"])]


def torch() -> list[Finding]:
    """The library of codec and hot pool."""
    try:
        found = trial("kvd.worker.checkup", "torch")
    except TrialError as error:
        return [fault("torch", str(error), error.hint)]
    return [ok("torch", f"{found['version']}, on {found['gpu'] or 'the CPU'}")]


def llama(gpu: str) -> list[Finding]:
    """The build of llama.cpp, held against this CPU and the GPU that the machine has ("" for none)."""
    try:
        found = trial("kvd.worker.checkup", "llama")
    except TrialError as error:
        return [fault("llama.cpp", str(error), error.hint)]
    return [_build(found, cpu_flags()), *_gpu(gpu, bool(found["gpu"]))]


def _build(found: dict[str, Any], flags: frozenset[str]) -> Finding:
    used = [name for name in found["features"] if name in _CPU_FLAGS]
    text = f"{found['version']}, built for {', '.join(used) or 'any CPU of its kind'}"
    lacking = [name for name in used if _CPU_FLAGS[name] not in flags]
    if flags and lacking:
        return fault("llama.cpp", f"{text}; this CPU lacks {', '.join(lacking)}", f"reinstall it: {REINSTALL}")
    if _CPU_FLAGS[_FAST] in flags and _FAST not in used:
        return note("llama.cpp", f"{text}; this CPU also has {_FAST}", f"for more speed: {REINSTALL}")
    return ok("llama.cpp", text)


def _gpu(gpu: str, usable: bool) -> list[Finding]:
    if not gpu:
        return [ok("gpu", "none; answers come from the CPU")]
    if usable:
        return [ok("gpu", gpu)]
    return [
        note(
            "gpu",
            f"{gpu}, not used: llama.cpp is built without it",
            "CMAKE_ARGS=-DGGML_CUDA=ON pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python==0.3.36",
        )
    ]


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What an x86-64 CPU can do, in the kernel's words; empty where the kernel does not say."""
    try:
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())


def try_model(model: ActiveModel) -> dict[str, Any]:
    """Load the model and compute a few tokens; see `kvd.worker.checkup` for what comes back. Raises `TrialError`."""
    return trial("kvd.worker.checkup", "model", str(model.path))


def embedder(setting: str) -> list[Finding]:
    """The embedder that the settings name; the default one needs nothing that could be missing."""
    if setting == DEFAULT_EMBEDDER:
        return []
    unset = "kvd config unset embedder"
    try:
        model = read_embedding_model(Path(os.path.expanduser(setting)))
        found = trial("kvd.worker.checkup", "embedder", json.dumps(model.request()))
    except ModelError as error:
        return [fault("embedder", f"{setting}: {error.message}", error.hint or unset)]
    except (TrialError, OSError) as error:
        return [fault("embedder", f"{setting}: {error}", unset)]
    return [ok("embedder", f"{setting}, {found['dimension']} numbers a vector ({model.about})")]


def trial(module: str, *arguments: str) -> dict[str, Any]:
    """What the program `module` prints. Raises `TrialError` when it fails or takes too long."""
    # -P: the working folder is no place to import from.
    command = [sys.executable, "-P", "-m", module, *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        raise TrialError(
            f"it does not end within {_SECONDS:.0f} s", "try again when the machine is less busy"
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        said = f": {last}" if last else ""
        hint = end_hint(done.returncode, "install kvd anew in a fresh virtual environment")
        raise TrialError(f"it fails ({describe_end(done.returncode)}){said}", hint)
    found: dict[str, Any] = json.loads(done.stdout)
    if "error" in found:
        raise TrialError(found["error"]["message"], found["error"]["hint"])
    return found
