"""What Ctrl-C does to a command.

Python raises KeyboardInterrupt wherever it happens to be. What is being imported or freed just then may swallow it, and
the command would go on. So it ends the command at once, but where there is something to tidy up.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kvd.errors import CancelledError


def end_at_once() -> None:
    """From now on Ctrl-C ends the process, with the error and the exit status of any interrupted command."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: _end())


@contextmanager
def interrupts_raised() -> Iterator[None]:
    """Within it Ctrl-C raises KeyboardInterrupt; where that is swallowed it still ends the process."""
    handler, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook

    def notice(fault: Any) -> None:
        if issubclass(fault.exc_type, KeyboardInterrupt):
            _end()
        hook(fault)

    if handler is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = notice
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        sys.unraisablehook = hook


def _end() -> None:
    with suppress(OSError):
        # Not by way of sys.stdout, which may be at work this very moment.
        if "--json" in sys.argv[1:]:
            os.write(1, b'{"error": {"code": "cancelled", "message": "interrupted", "hint": ""}}\n')
        else:
            os.write(2, b"kvd: interrupted\n")
    os._exit(CancelledError.exit_code)
