"""What Ctrl-C does to a command where there is nothing to tidy up, from the very first import on."""

from __future__ import annotations

import os
import signal
import sys

_EXIT_CODE = 130
"""`kvd.errors.CancelledError.exit_code`: to import that takes longer than this may."""


def end_at_once() -> None:
    """From now on Ctrl-C ends the process, with the error and the exit status of any interrupted command."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: end())


def end() -> None:
    try:
        # Not by way of sys.stdout, which may be at work this very moment.
        if wants_json(sys.argv[1:]):
            os.write(1, b'{"error": {"code": "cancelled", "message": "interrupted", "hint": ""}}\n')
        else:
            os.write(2, b"kvd: interrupted\n")
    except OSError:
        # The exit status still says it.
        pass
    os._exit(_EXIT_CODE)


def wants_json(arguments: list[str]) -> bool:
    """Whether the option `--json` is among the arguments: what follows `--` is none, but one before the command."""
    words = arguments[1:] if arguments[:1] == ["--"] else arguments
    return "--json" in (words[: words.index("--")] if "--" in words else words)
