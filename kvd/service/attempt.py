"""Loading a model by less and less on the GPU, until it fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvd.service.engine_child import Event


class Attempt:
    """What is tried while a model loads: what children say of it, and what the next child gets to try."""

    def __init__(self, forward: Event, tell: Callable[[str], None]) -> None:
        self._forward, self._tell = forward, tell
        self._current: dict[str, Any] = {}
        self._next: dict[str, Any] | None = None
        self.placement: dict[str, Any] | None = None
        """For the next child; None: it decides for itself."""

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        if event != "placement":
            self._forward(event, data)
            return
        self._current, self._next = data["placement"], data["next"]
        if data["failure"]:
            self._tell(f"{data['failure']}; now {self._current['text']}")

    def next_after(self, death: str) -> bool:
        """Go on to what the dead child said; false where nothing is left to try."""
        if self._next is None:
            return False
        failure = f"{self._current['text']}: {death}"
        self.placement, self._next = {**self._next, "why": failure}, None
        self._tell(f"{failure}; now {self.placement['text']}")
        return True
