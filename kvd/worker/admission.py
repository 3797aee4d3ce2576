"""Which prompts run: they are let into the cells in the order in which they came, as soon as there is room."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Sequence

from kvd.worker.batcher import Batcher
from kvd.worker.decoding import LOOK_SECONDS, Step
from kvd.worker.resident import LivePrompt, ResidentPrompts


class Admission:
    """A large prompt is not passed by smaller ones that came later: it would never have its turn."""

    def __init__(self, batcher: Batcher, resident: ResidentPrompts) -> None:
        self._batcher, self._resident = batcher, resident
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    def enter(
        self, runs: Sequence[tuple[Hashable, int]], rest: int, step: Step, together: int | None = None
    ) -> LivePrompt:
        """Wait for room; otherwise as `ResidentPrompts.begin`. `step` may cancel."""
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
        try:
            while True:
                step()
                with self._changed:
                    live = self._begin(runs, rest, together) if self._waiting[0] is ticket else None
                    if live is not None:
                        return live
                    self._changed.wait(LOOK_SECONDS)
        finally:
            with self._changed:
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def _begin(self, runs: Sequence[tuple[Hashable, int]], rest: int, together: int | None) -> LivePrompt | None:
        return self._batcher.call(lambda: self._resident.begin(runs, rest, together))

    def leave(self, live: LivePrompt, runs: Sequence[tuple[Hashable, int]] = ()) -> None:
        """The prompt has ended. `runs` are those of its contents that stay, as for `ResidentPrompts.keep`."""

        def end() -> None:
            if runs:
                self._resident.keep(live, runs)
            self._resident.end(live)

        self._batcher.call(end)
        with self._changed:
            self._changed.notify_all()
