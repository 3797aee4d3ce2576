"""Native code on trial: each piece in a process of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvd.doctor import native

_PORTABLE = {"version": "1", "features": ["AVX", "AVX2", "OPENMP"], "gpu": False}
_CPU = frozenset({"avx", "avx2", "fma"})


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules can be put on trial."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_sqlite_holds_an_index() -> None:
    assert [(item.part, item.verdict) for item in native.sqlite()] == [("sqlite", "ok"), ("sqlite-vec", "ok")]


def test_llama_is_built_for_this_machine() -> None:
    build, gpu = native.llama("")
    assert (build.part, build.verdict) == ("llama.cpp", "ok")
    assert gpu.verdict == "ok"


def test_a_build_for_another_cpu_is_a_fault() -> None:
    found = native._build({**_PORTABLE, "features": ["AVX2", "AMX_INT8"]}, _CPU)
    assert found.verdict == "fault"
    assert found.text.endswith("this CPU lacks AMX_INT8")
    assert "GGML_NATIVE=OFF" in found.hint


def test_a_build_that_leaves_the_cpu_unused_is_noted() -> None:
    assert native._build(_PORTABLE, _CPU).verdict == "ok"
    assert native._build({**_PORTABLE, "features": []}, _CPU).verdict == "note"
    # Where the kernel does not say what the CPU has, nothing is missed.
    assert native._build(_PORTABLE, frozenset()).verdict == "ok"


def test_cpu_flags_are_the_kernels(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: fpu avx avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert native.cpu_flags(file) == {"fpu", "avx", "avx2"}
    assert native.cpu_flags(tmp_path / "none") == frozenset()


def test_a_gpu_that_the_build_can_not_use_is_noted() -> None:
    (found,) = native._gpu("NVIDIA RTX", False)
    assert found.verdict == "note"
    assert "GGML_CUDA=ON" in found.hint
    assert native._gpu("NVIDIA RTX", True)[0].verdict == "ok"


@pytest.mark.parametrize(
    ("program", "message", "hint"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "it fails (signal SIGILL)", "GGML_NATIVE=OFF"),
        ("raise ImportError('no such library')", "ImportError: no such library", "fresh virtual environment"),
        ('print(\'{"error": {"message": "it is bad", "hint": "mend it"}}\')', "it is bad", "mend it"),
    ],
)
def test_a_trial_that_fails_says_how(programs: Path, program: str, message: str, hint: str) -> None:
    (programs / "tried.py").write_text(program)
    with pytest.raises(native.TrialError, match=re.escape(message)) as caught:
        native.trial("tried")
    assert hint in caught.value.hint


def test_a_trial_that_hangs_is_ended(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_SECONDS", 0.5)
    (programs / "tried.py").write_text("import signal; signal.pause()")
    with pytest.raises(native.TrialError, match="does not end"):
        native.trial("tried")
