"""`python -m kvd.worker`: the engine child. The daemon starts it; it is not meant to be run by hand."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from typing import NoReturn

from kvd.engine.machine import wait_briefly


def main() -> None:
    # Native code prints to standard output when it likes; frames get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    faulthandler.enable()
    wait_briefly()
    from kvd.engine.log import quiet_llama_log
    from kvd.worker.child import Child

    quiet_llama_log()

    try:
        Child(sys.stdin.buffer, answers).serve()
    except BaseException:
        traceback.print_exc()
        _end(1)
    _end(0)


def _end(status: int) -> NoReturn:
    # The reading thread is blocked on standard input, which an ordinary exit would wait for.
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
