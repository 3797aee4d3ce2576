"""Where the time goes: seconds by the name of what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter


class Spans:
    """Adds up the time spent under each name; entered in nested fashion, names do not exclude one another."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        started = perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + perf_counter() - started

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what was measured elsewhere."""
        for name, spent in seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + spent

    def take(self) -> dict[str, float]:
        """Seconds by name since the last call."""
        seconds, self._seconds = self._seconds, {}
        return seconds
