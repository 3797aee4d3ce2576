"""`python -m kvd.worker`: the engine child. The daemon starts it; it is not meant to be run by hand."""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

from kvd.worker.process import prepare


def main() -> None:
    answers = prepare()
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
