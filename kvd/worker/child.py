"""The child's requests: load, ask, rank, prefetch, release, stats, shutdown. Frames are `kvd.worker.protocol`'s."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from time import monotonic
from typing import Any, BinaryIO

from kvd.engine.memory import memory_in_use
from kvd.errors import CancelledError, KvdError, UnavailableError, UsageError
from kvd.kv.pager import Damaged
from kvd.kv.pool import HotPool
from kvd.kv.store import StoredBlock
from kvd.types import Progress
from kvd.worker.answerer import Answerer
from kvd.worker.bringing import Listener
from kvd.worker.decoding import PREFIX
from kvd.worker.loading import Loader
from kvd.worker.protocol import Message, encode_frame, read_frame
from kvd.worker.requests import candidates_from, question_from
from kvd.worker.rerank import Reranker

IDLE_SECONDS = 5.0
"""After so long without a question the integrity of what is in memory is checked."""


class Child:
    """Serves one daemon over two binary files. One thread reads, the caller of `serve` runs the engine."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests, self._answers = requests, answers
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._cancelled: set[int] = set()
        self._answerer: Answerer | None = None
        self._reranker: Reranker | None = None
        self._pool: HotPool | None = None
        self._integrity_failures = 0
        self._told: dict[str, int] = {}
        self._check_due: float | None = None

    def serve(self) -> None:
        """Answer requests until `shutdown`. The process ends when the daemon is gone."""
        threading.Thread(target=self._read, name="requests", daemon=True).start()
        methods: dict[str, Callable[[int, Message], Message]] = {
            "load": self._load,
            "ask": self._ask,
            "rank": self._rank,
            "prefetch": self._prefetch,
            "release": self._release,
            "stats": self._stats,
            "shutdown": lambda number, params: {},
        }
        while True:
            request = self._next_request()
            number, method = int(request["id"]), str(request["method"])
            try:
                handle = methods.get(method)
                if handle is None:
                    raise KvdError(f"the engine knows no {method!r}")
                self._send({"id": number, "result": handle(number, request.get("params", {}))})
            except KvdError as error:
                self._send({"id": number, "error": error.to_json()})
            except Exception as error:
                # Told to whoever waits; what state the engine is in nobody knows, so the process ends.
                failure = UnavailableError(f"the engine failed ({type(error).__name__}: {error})", hint="kvd logs")
                self._send({"id": number, "error": failure.to_json()})
                raise
            if method == "shutdown":
                return
            if method in ("load", "ask", "rank", "prefetch"):
                self._check_due = monotonic() + IDLE_SECONDS

    def _next_request(self) -> Message:
        """The next request; when none has come for a while after a question, what is in memory is checked once."""
        if self._check_due is not None:
            try:
                return self._queue.get(timeout=max(0.0, self._check_due - monotonic()))
            except queue.Empty:
                self._check_due = None
                self._check_integrity()
        return self._queue.get()

    def _check_integrity(self) -> None:
        """Raises `RuntimeError`, which ends this process, when pool or cells are broken: they must not be used."""
        try:
            if self._pool is not None:
                self._pool.check_integrity()
            if self._answerer is not None:
                self._answerer.resident.check_integrity()
        except Exception as error:
            # Also where the check itself stumbles over what it finds.
            self._integrity_failures += 1
            self._event("integrity", {"reason": f"{type(error).__name__}: {error}"})
            raise RuntimeError("the KV in memory is broken") from error

    def _read(self) -> None:
        while (frame := read_frame(self._requests)) is not None:
            message, _ = frame
            if message.get("method") == "cancel":
                self._cancelled.add(int(message["params"]["id"]))
            else:
                self._queue.put(message)
        # The daemon is gone: nobody waits for what this process may still be computing.
        os._exit(0)

    def _send(self, message: Message, blob: bytes = b"") -> None:
        counters = self._counters()
        if counters != self._told:
            message, self._told = {**message, "counters": counters}, counters
        self._answers.write(encode_frame(message, blob))
        self._answers.flush()

    def _counters(self) -> dict[str, int]:
        """See `kvd.worker.protocol.COUNTERS`."""
        counters = {"integrity_failures": self._integrity_failures} if self._integrity_failures else {}
        reuse = self._answerer.reuse if self._answerer else None
        if reuse is not None and self._pool is not None:
            counters |= {**reuse.pager.counts, "hot_evicted": self._pool.evictions}
        return counters

    def _event(self, event: str, data: Message, number: int | None = None, blob: bytes = b"") -> None:
        message: Message = {"event": event, "data": data}
        if number is not None:
            message["id"] = number
        self._send(message, blob)

    def _load(self, number: int, params: Message) -> Message:
        if self._answerer is not None:
            raise UsageError("a model is loaded already")
        loaded = Loader(params, lambda event, data: self._event(event, data, number)).load()
        self._answerer, self._pool = loaded.answerer, loaded.pool
        reuse = loaded.answerer.reuse
        self._reranker = Reranker(loaded.answerer, reuse) if reuse else None
        return loaded.facts

    def _ask(self, number: int, params: Message) -> Message:
        answerer = self._answerer
        if answerer is None:
            raise UsageError("no model is loaded")
        try:
            question = question_from(params, answerer.prompts, lambda: number in self._cancelled)
            listener = self._listener(number)
            # A question that was cancelled may lack chunks.
            listener.step()
            return answerer.answer(question, listener)
        finally:
            self._done(number, answerer)

    def _done(self, number: int, answerer: Answerer) -> None:
        self._cancelled.discard(number)
        if answerer.reuse is not None and (used := answerer.reuse.pager.take_used()):
            self._event("touch", {"keys": [key.hex() for key in used]})

    def _rank(self, number: int, params: Message) -> Message:
        answerer, reranker = self._answerer, self._reranker
        if answerer is None:
            raise UsageError("no model is loaded")
        if reranker is None:
            # Without stored KV it would take longer than answering.
            return {"gains": [None] * len(params["chunks"]), "computed": 0}
        try:
            candidates = candidates_from(params, answerer.prompts, lambda: number in self._cancelled)
            listener = self._listener(number)
            listener.step()
            return asdict(reranker.judge(candidates, listener))
        finally:
            self._done(number, answerer)

    def _prefetch(self, number: int, params: Message) -> Message:
        answerer = self._answerer
        if answerer is None:
            raise UsageError("no model is loaded")

        def interrupted() -> bool:
            return number in self._cancelled

        try:
            draft = question_from(params, answerer.prompts, interrupted)
            return answerer.prefetch(draft, int(params["client"]), interrupted)
        finally:
            self._cancelled.discard(number)
            for block in answerer.reuse.pager.take_damaged() if answerer.reuse else ():
                self._damaged(block)

    def _release(self, number: int, params: Message) -> Message:
        """A client is gone, or wants nothing any more: what is leased to it may leave."""
        if self._pool is not None:
            self._pool.lease(int(params["client"]), ())
        return {}

    def _listener(self, number: int) -> Listener:
        def step() -> None:
            if number in self._cancelled:
                raise CancelledError("cancelled")

        def blocks(frames: list[StoredBlock]) -> None:
            self._event("blocks", {"blocks": _described(frames)}, blob=b"".join(frame.data for frame in frames))

        def progress(value: Progress) -> None:
            self._event("stage", value.to_json(), number)

        def token(text: str) -> None:
            self._event("token", {"text": text}, number)

        return Listener(progress, token, blocks, self._damaged, step)

    def _damaged(self, block: Damaged) -> None:
        self._event("drop", {"keys": [block.key.hex()], "reason": block.reason})

    def _stats(self, number: int, params: Message) -> Message:
        return {
            "pool": self._pool.stats() if self._pool else {},
            "cells": _cells_stats(self._answerer) if self._answerer else {},
            "memory": memory_in_use(),
        }


def _cells_stats(answerer: Answerer) -> dict[str, int]:
    cells = answerer.resident.stats()
    if answerer.reuse is None:
        # Only the shared prefix stays, of cells whose size is not known.
        return {**cells, "used_bytes": answerer.engine.state_bytes(PREFIX)}
    return {**cells, "used_bytes": (cells["prefix"] + cells["resident"]) * answerer.reuse.shape.bytes_per_token}


def _described(frames: Sequence[StoredBlock]) -> list[dict[str, Any]]:
    return [
        {
            "key": frame.key.hex(),
            "parent": frame.parent.hex(),
            "fingerprint": frame.fingerprint.hex(),
            "tokens": frame.tokens,
            "size": len(frame.data),
            "seconds": frame.seconds,
        }
        for frame in frames
    ]
