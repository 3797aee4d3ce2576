"""The `kvd` command: arguments in, text or one JSON object out."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import sys
from contextlib import nullcontext
from typing import TextIO

import kvd
from kvd.errors import CancelledError, KvdError, UsageError

from .at_once import end_at_once, wants_json
from .interrupts import interrupts_raised

# What goes wrong with the stream itself; its errors carry no file name.
_STREAM_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


def main() -> int:
    """Run the command line of this process; the exit status."""
    end_at_once()
    arguments = sys.argv[1:]
    _complete_streams()
    for stream in (sys.stdout, sys.stderr):
        # File names need not be encodable, and the terminal need not be UTF-8.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # both are text streams
    status = 0
    try:
        try:
            status = _run(arguments)
        except (KeyboardInterrupt, KvdError) as error:
            fault = error if isinstance(error, KvdError) else CancelledError("interrupted")
            status = fault.exit_code
            _report(fault, as_json=wants_json(arguments))
        sys.stdout.flush()
        # All is said.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except BrokenPipeError:
        # The reader has seen enough.
        _give_up(sys.stdout)
    except OSError as error:
        if error.errno not in _STREAM_FAULTS or error.filename is not None:
            raise
        _give_up(sys.stdout)
        fault = KvdError(f"can't write the output: {error.strerror}", hint="send it somewhere else: kvd ... > FILE")
        status = fault.exit_code
        _report(fault)
    return status


def _complete_streams() -> None:
    """Open what the caller has closed of stdin, stdout and stderr, so that nothing else gets their numbers."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    # Python leaves None where a stream was closed.
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _give_up(stream: TextIO) -> None:
    """Send what is left to nowhere: Python would try to write it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(arguments: list[str]) -> int:
    if arguments in (["--version"], ["-V"]):
        print(f"kvd {kvd.__version__}")
        return 0
    import typer

    from .app import build_app, named

    # What typer itself raises for wrong arguments; this ancestor of a public class is not public.
    usage_fault: type[Exception] = typer.BadParameter.__mro__[2]
    app = build_app(arguments)
    # `bench` waits for a program of its own, which gets Ctrl-C too and has more to tidy up.
    waits = interrupts_raised() if named(arguments) == "bench" else nullcontext()
    try:
        with waits:
            result = app(args=arguments, prog_name="kvd", standalone_mode=False)
    except typer.Abort:
        raise CancelledError("interrupted") from None
    except usage_fault as error:
        raise _usage_error(error, arguments) from None
    except SystemExit:
        # How typer ends when nobody reads its output any more.
        raise BrokenPipeError from None
    return result if isinstance(result, int) else 0


def _usage_error(error: BaseException, arguments: list[str]) -> UsageError:
    describe = getattr(error, "format_message", None)
    message = describe() if callable(describe) else str(error)
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", None) or "kvd"
    if command == "kvd" and (right := _options_last(arguments)):
        return UsageError(f"{arguments[0]} has its place after the command", hint=right)
    asks = command.endswith((" ask", " search")) and "extra argument" in str(message)
    hint = f'put a question of several words in quotes: {command} "..."' if asks else f"{command} --help"
    message = re.sub(r"is not a valid int\w*( range)?", "is not a whole number", " ".join(str(message).split()))
    return UsageError(message.rstrip("."), hint=hint)


def _options_last(arguments: list[str]) -> str:
    """The command line with what stands before the command behind it, or "" where nothing does."""
    from .app import COMMANDS

    place = next((number for number, word in enumerate(arguments) if word in COMMANDS), 0)
    rest = arguments[place + 1 :]
    # Behind `--` it would be no option.
    end = rest.index("--") if "--" in rest else len(rest)
    moved = [arguments[place], *rest[:end], *arguments[:place], *rest[end:]]
    return shlex.join(["kvd", *moved]) if place and arguments[0].startswith("--") and arguments[0] != "--" else ""


def _report(error: KvdError, *, as_json: bool = False) -> None:
    from .text import clean_line

    if as_json:
        import json

        print(json.dumps({"error": error.to_json()}), flush=True)
        return
    try:
        print(f"kvd: {clean_line(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"hint: {clean_line(error.hint)}", file=sys.stderr)
    except OSError:
        # The exit status still says it.
        _give_up(sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
