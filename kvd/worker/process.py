"""What each child process of the daemon does first."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from contextlib import suppress
from typing import BinaryIO

from kvd.engine.machine import wait_briefly

_PR_SET_PDEATHSIG = 1
"""Of `prctl(2)`."""
_M_ARENA_MAX = -8
"""Of glibc's `mallopt(3)`."""
_ARENAS = 2


def prepare() -> BinaryIO:
    """Where frames go. Call it before native code is loaded."""
    # Native code prints to standard output when it likes; frames get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    faulthandler.enable()
    _end_with_parent()
    _keep_memory_together()
    wait_briefly()
    return answers


def _end_with_parent() -> None:
    """Have the system kill this process when the thread that started it ends: one that is stopped reads no end of
    input, and one that computes reads it late."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _keep_memory_together() -> None:
    """Let glibc's threads share a few heaps: each keeps what its own one has freed, up to eight times the cores."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
