"""Stages of a long request, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from kvd.rpc.stages import describe as describe

from .text import clean_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE_SECONDS = 0.3
_QUICK = ("scan", "index")
"""Stages that every request has and that are mostly over at once."""

_LONG = "check"
"""A stage that is told of at once also where there is no terminal."""

_LINE_SECONDS = 5.0


class Stages:
    """Shows stages until `close`. Nothing is shown of what is over in the blink of an eye."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._next_line = self._started + _LINE_SECONDS
        self._told_long = False

    def show(self, value: dict[str, Any]) -> None:
        if value.get("stage") == "first-index":
            self._say(f"no index of {clean_line(str(value.get('message')))} yet: making one")
        elif value.get("stage") == "rebuild":
            self._say(f"the index is made anew: {clean_line(str(value.get('message')))}")
        elif value.get("stage") in ("fallback", "notice"):
            self.close()
            self._say(clean_line(str(value.get("message"))))
        elif value.get("stage") == _LONG and not self._terminal and not self._told_long:
            self._told_long = True
            self._say(f"{describe({'stage': _LONG})}: that may take a minute")
        elif self._terminal:
            early = time.monotonic() - self._started < _PATIENCE_SECONDS
            if not (early and value.get("stage") in _QUICK):
                self._draw(value)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_SECONDS
            self._say(describe(value))

    @staticmethod
    def _say(line: str) -> None:
        print(f"kvd: {line}", file=sys.stderr, flush=True)

    def _draw(self, value: dict[str, Any]) -> None:
        if self._bar is None:
            self._bar = _make_bar()
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        assert self._task is not None
        total = int(value.get("total") or 0)
        self._bar.update(
            self._task,
            description=describe(value),
            completed=int(value.get("done") or 0),
            total=total or None,
        )

    def close(self) -> None:
        """Wipe what is shown; what comes later is shown anew."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = None


def _make_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    # markup=False: a file's name is no markup.
    text = TextColumn("{task.description}", markup=False)
    return Progress(text, BarColumn(), TimeElapsedColumn(), console=Console(stderr=True), transient=True)
