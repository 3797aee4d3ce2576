"""The `kvd` command: arguments in, text or one JSON object out."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import kvd
from kvd.errors import CancelledError, KvdError, UsageError


def main() -> int:
    """Run the command line of this process; the exit status."""
    arguments = sys.argv[1:]
    for stream in (sys.stdout, sys.stderr):
        # File names need not be encodable, and the terminal need not be UTF-8.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # both are text streams
    if arguments in (["--version"], ["-V"]):
        print(f"kvd {kvd.__version__}")
        return 0
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. Python would try to flush once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _failed(CancelledError("interrupted"), arguments)
    except KvdError as error:
        return _failed(error, arguments)
    return status


def _run(arguments: list[str]) -> int:
    import typer

    from .app import build_app

    # What typer itself raises for wrong arguments; this ancestor of a public class is not public.
    usage_fault: type[Exception] = typer.BadParameter.__mro__[2]
    try:
        result = build_app(arguments)(args=arguments, prog_name="kvd", standalone_mode=False)
    except typer.Abort:
        raise CancelledError("interrupted") from None
    except usage_fault as error:
        raise _usage_error(error) from None
    except SystemExit:
        # How typer ends when nobody reads its output any more.
        raise BrokenPipeError from None
    return result if isinstance(result, int) else 0


def _usage_error(error: BaseException) -> UsageError:
    describe = getattr(error, "format_message", None)
    message = describe() if callable(describe) else str(error)
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", None) or "kvd"
    quoted = 'put a question of several words in quotes: kvd ask "..."'
    hint = quoted if "extra argument" in str(message) else f"{command} --help"
    return UsageError(" ".join(str(message).split()).rstrip("."), hint=hint)


def _failed(error: KvdError, arguments: list[str]) -> int:
    from .text import clean_line

    with suppress(BrokenPipeError):
        if "--json" in arguments:
            import json

            print(json.dumps({"error": error.to_json()}), flush=True)
        else:
            print(f"kvd: {clean_line(error.message)}", file=sys.stderr)
            if error.hint:
                print(f"hint: {clean_line(error.hint)}", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
