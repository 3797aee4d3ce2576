"""llama.cpp's own log: warnings and errors go to standard error, the rest is dropped."""

from __future__ import annotations

import ctypes
import sys

import llama_cpp

_WARNING, _ERROR, _CONTINUED = 3, 4, 5

_level = 0
_shown: tuple[int, ...] = (_WARNING, _ERROR)


def _write(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    global _level
    if level != _CONTINUED:
        _level = level
    if _level in _shown:
        sys.stderr.write(text.decode("utf-8", "replace"))


# Kept in the module: ctypes does not hold on to what C code calls.
_CALLBACK = llama_cpp.llama_log_callback(_write)


def quiet_llama_log(warnings: bool = True) -> None:
    """Takes effect for the whole process; without `warnings` only errors are left."""
    global _shown
    _shown = (_WARNING, _ERROR) if warnings else (_ERROR,)
    llama_cpp.llama_log_set(_CALLBACK, ctypes.c_void_p(0))
