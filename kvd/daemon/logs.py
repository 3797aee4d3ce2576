"""The daemon's log: what happened and how long it took, never what was asked or answered."""

from __future__ import annotations

import logging
import logging.handlers
import os
import traceback

from kvd import paths
from kvd.regular import check_regular

_MAX_BYTES = 2_000_000
_KEPT = 3
_MOST_PLACES = 20
"""Of a fault, half of them where it happened, half of them where it began."""


def set_up() -> None:
    """Log into the rotating file of `kvd logs`, readable by this user alone."""
    # A full disk must not fill stderr with tracebacks.
    logging.raiseExceptions = False
    check_regular(paths.log_file(), device=True)
    handler = logging.handlers.RotatingFileHandler(
        paths.log_file(), maxBytes=_MAX_BYTES, backupCount=_KEPT, encoding="utf-8", errors="backslashreplace"
    )
    os.chmod(paths.log_file(), 0o600)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def describe_fault(error: BaseException) -> str:
    """Kind and place of an unexpected error. Its message is left out: it may quote what was asked."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    places = [f"{code.co_filename}:{line} {code.co_name}" for code, line in reversed(frames)]
    if len(places) > _MOST_PLACES:
        half = _MOST_PLACES // 2
        # A recursion without end has a thousand.
        places[half:-half] = [f"{len(places) - _MOST_PLACES} more"]
    return f"{type(error).__name__} at {' < '.join(places)}"
