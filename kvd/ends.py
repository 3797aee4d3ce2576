"""How a program that runs native code ended, for people, and what may help."""

from __future__ import annotations

import signal

REINSTALL = (
    "CMAKE_ARGS=-DGGML_NATIVE=OFF pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python==0.3.36"
)
"""Builds a llama.cpp that any x86-64 CPU with AVX2 can run."""


def describe_end(code: int | None) -> str:
    """`signal SIGILL`, `exit status 1`. `code` is as `subprocess` has it, None where nobody knows."""
    if code is None:
        return "it is gone"
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def end_hint(code: int | None, otherwise: str) -> str:
    """What to do about an end; `otherwise` where it does not tell."""
    if code == -signal.SIGILL:
        return f"this CPU can't run the llama.cpp build; reinstall it: {REINSTALL}"
    if code == -signal.SIGKILL:
        return "out of memory? choose a smaller model: kvd setup, or look at: kvd logs"
    return otherwise
