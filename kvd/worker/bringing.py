"""Bringing bodies' KV into the hot pool for one request: what is there, what is on disk, what is computed now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvd.kv.bodies import Vector
from kvd.kv.pager import BlockAddress, Body, Damaged, Fetched
from kvd.kv.said import fetch as fetch_said
from kvd.kv.spans import Spans
from kvd.kv.store import StoredBlock
from kvd.types import Progress
from kvd.worker.decoding import FIRST, Slot, Step
from kvd.worker.reuse import Reuse


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a request's events go. `step` is called between decode steps and raises to cancel."""

    progress: Callable[[Progress], None]
    token: Callable[[str], None]
    blocks: Callable[[list[StoredBlock]], None]
    damaged: Callable[[Damaged], None]
    step: Step


class Bringing:
    """What it brings stays pinned until `release`. `spans` gets the time of "prefill" and of the pager's steps; bodies
    are computed in the sequences of `slot`."""

    def __init__(self, reuse: Reuse, listener: Listener, spans: Spans, slot: Slot = FIRST) -> None:
        self._reuse, self._listener, self._spans, self._slot = reuse, listener, spans, slot
        self._pinned: list[Fetched] = []
        self.computed = 0
        """Bodies whose KV was made."""

    def bring(
        self,
        bodies: Sequence[Body],
        vector: Vector | None,
        resident: Sequence[Body] = (),
        worth: Callable[[Body], bool] = lambda body: True,
    ) -> list[Fetched | None]:
        """Every body's blocks: hot, from the store, or computed and stored now; None for what is not `worth` computing.

        `resident` bodies are in cells already. Raises `PoolFullError`, and what computing raises.
        """
        found = self._fetch(bodies, vector, resident)
        missing = len({body for body, fetched in zip(bodies, found, strict=True) if fetched is None})
        made: dict[Body, Fetched] = {}
        for index, body in enumerate(bodies):
            if found[index] is not None:
                continue
            if body in made:
                found[index] = self.again(made[body])
            elif worth(body):
                self._listener.progress(Progress("prefill", len(made), missing))
                found[index] = made[body] = self.make(body)
        if made:
            self._listener.progress(Progress("prefill", missing, missing))
        return found

    def _fetch(self, bodies: Sequence[Body], vector: Vector | None, resident: Sequence[Body]) -> list[Fetched | None]:
        pager = self._reuse.pager
        with self._reuse.lock:
            pager.spans.take()  # what was measured for nobody
            found = pager.fetch(bodies, vector, resident)
            self._spans.add(pager.spans.take())
            self._pinned += [fetched for fetched in found if fetched is not None]
            damaged = pager.take_damaged()
        # Told before what replaces them is: both go by the same address.
        for block in damaged:
            self._listener.damaged(block)
        return found

    def said(self, blocks: Sequence[BlockAddress]) -> Fetched:
        """A conversation's blocks up to the first that is missing. Raises `PoolFullError`."""
        pager = self._reuse.pager
        with self._reuse.lock:
            pager.spans.take()
            fetched = self._pin(fetch_said(pager, blocks))
            self._spans.add(pager.spans.take())
            damaged = pager.take_damaged()
        for block in damaged:
            self._listener.damaged(block)
        return fetched

    def again(self, fetched: Fetched) -> Fetched:
        """The blocks of code that another chunk of the same request has."""
        with self._reuse.lock:
            return self._pin(self._reuse.pager.again(fetched))

    def make(self, body: Body) -> Fetched:
        """Compute a body, or take it from another question that does so at the same time."""
        with self._spans.measure("prefill"):
            while not self._reuse.claim(body, self._listener.step):
                with self._reuse.lock:
                    found = self._reuse.pager.fetch_made(body)
                if found is not None:
                    return self._pin(found)
            try:
                fetched, frames = self._reuse.compute(body, self._listener.step, self._slot)
            finally:
                self._reuse.disclaim(body)
        self._pin(fetched)
        self.computed += 1
        self._listener.blocks(frames)
        return fetched

    def _pin(self, fetched: Fetched) -> Fetched:
        self._pinned.append(fetched)
        return fetched

    def release(self) -> None:
        with self._reuse.lock:
            self._reuse.pager.release(self._pinned)
        self._pinned = []
