"""The daemon's log: what happened and how long it took, never what was asked or answered."""

from __future__ import annotations

import logging
import logging.handlers
import os
import traceback

from kvd import paths

_MAX_BYTES = 2_000_000
_KEPT = 3


def set_up() -> None:
    """Log into the rotating file of `kvd logs`, readable by this user alone."""
    # A full disk must not fill stderr with tracebacks.
    logging.raiseExceptions = False
    handler = logging.handlers.RotatingFileHandler(
        paths.log_file(), maxBytes=_MAX_BYTES, backupCount=_KEPT, encoding="utf-8", errors="backslashreplace"
    )
    os.chmod(paths.log_file(), 0o600)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def describe_fault(error: BaseException) -> str:
    """Kind and place of an unexpected error. Its message is left out: it may quote what was asked."""
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__} at {' < '.join(reversed(places))}"
