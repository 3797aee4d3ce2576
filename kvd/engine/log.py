"""llama.cpp's own log: warnings and errors go to standard error, the rest is dropped."""

from __future__ import annotations

import ctypes
import sys

import llama_cpp

_WARNING = 3
_CONTINUED = 5

_level = 0


def _write(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    global _level
    if level != _CONTINUED:
        _level = level
    if _level in (_WARNING, _WARNING + 1):
        sys.stderr.write(text.decode("utf-8", "replace"))


# Kept in the module: ctypes does not hold on to what C code calls.
_CALLBACK = llama_cpp.llama_log_callback(_write)


def quiet_llama_log() -> None:
    """Takes effect for the whole process."""
    llama_cpp.llama_log_set(_CALLBACK, ctypes.c_void_p(0))
