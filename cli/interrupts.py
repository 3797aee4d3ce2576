"""What Ctrl-C does to a command.

Python raises KeyboardInterrupt wherever it happens to be. What is being imported or freed just then may swallow it, and
the command would go on. So it ends the command at once, but where there is something to tidy up.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .at_once import end


@contextmanager
def interrupts_raised() -> Iterator[None]:
    """Within it Ctrl-C raises KeyboardInterrupt; where that is swallowed it still ends the process."""
    handler, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook

    def notice(fault: Any) -> None:
        if issubclass(fault.exc_type, KeyboardInterrupt):
            end()
        hook(fault)

    if handler is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = notice
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        sys.unraisablehook = hook
