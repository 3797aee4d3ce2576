"""What the daemon asks of the child, in frames of `kvd.worker.protocol`: `Child._handle` has the methods."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from time import monotonic
from typing import Any, BinaryIO

from kvd.engine.memory import memory_in_use
from kvd.errors import CancelledError, KvdError, UnavailableError, UsageError
from kvd.kv.pool import HotPool
from kvd.model_calls import Choices
from kvd.worker.answerer import Answerer, Question
from kvd.worker.batcher import Batcher
from kvd.worker.bringing import Listener
from kvd.worker.deciding import Decision
from kvd.worker.decoding import PREFIX
from kvd.worker.loading import Loader
from kvd.worker.outbox import Outbox
from kvd.worker.protocol import Message, read_frame
from kvd.worker.requests import candidates_from, conversation_from, question_from
from kvd.worker.rerank import Reranker
from kvd.worker.reuse import Reuse

IDLE_SECONDS = 5.0
"""After so long without a question the integrity of what is in memory is checked."""
_BEAT_SECONDS = 2.0
"""At least so much time between two signs of life."""

_LONG = ("ask", "decide", "rank", "prefetch")
"""Methods that run in threads of their own, several at a time."""


class Child:
    """Serves one daemon over two binary files.

    One thread reads, the caller of `serve` deals requests out, one thread runs the engine (`kvd.worker.batcher`), and
    each question has one for what can be done beside it.
    """

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests, self._outbox = requests, Outbox(answers, self._counters)
        self._queue: queue.SimpleQueue[Message | BaseException] = queue.SimpleQueue()
        self._cancelled: set[int] = set()
        self._answerer: Answerer | None = None
        self._reranker: Reranker | None = None
        self._pool: HotPool | None = None
        self._integrity_failures = 0
        self._running = 0
        """Long requests that were dealt out and have not ended; for the thread of `serve` alone."""
        self._check_due: float | None = None
        self._beaten = 0.0
        self._threads: ThreadPoolExecutor | None = None
        self._upkeep = ThreadPoolExecutor(1, "upkeep")

    def serve(self) -> None:
        """Answer requests until `shutdown`. The process ends when the daemon is gone.

        Raises what went wrong in any of the threads: what state the engine is in nobody knows then.
        """
        threading.Thread(target=self._read, name="requests", daemon=True).start()
        while True:
            request = self._next_request()
            method = str(request["method"])
            if method in _LONG and self._threads is not None:
                self._running += 1
                self._threads.submit(self._handle_long, request)
            elif method in ("stats", "release", "forget"):
                self._upkeep.submit(self._handle_aside, request)
            else:
                self._handle(request)
            if method == "shutdown":
                return

    def _next_request(self) -> Message:
        """The next request; when none has come for a while after a question, what is in memory is checked once."""
        while True:
            item = self._next_item()
            if isinstance(item, BaseException):
                raise item
            if item.get("method") != "idle":
                return item
            # A long request has ended.
            self._running -= 1
            self._check_due = monotonic() + IDLE_SECONDS

    def _next_item(self) -> Message | BaseException:
        if self._check_due is not None and not self._running:
            try:
                return self._queue.get(timeout=max(0.0, self._check_due - monotonic()))
            except queue.Empty:
                self._check_due = None
                self._check_integrity()
        return self._queue.get()

    def _handle_long(self, request: Message) -> None:
        self._handle_aside(request)
        self._queue.put({"method": "idle"})

    def _handle_aside(self, request: Message) -> None:
        """As `_handle`, in another thread than that of `serve`, which gets what must end the process."""
        try:
            self._handle(request)
        except BaseException as error:  # raised again where it ends the process
            self._queue.put(error)

    def _handle(self, request: Message) -> None:
        methods: dict[str, Callable[[int, Message], Message]] = {
            "load": self._load,
            "ask": self._ask,
            "decide": self._decide,
            "rank": self._rank,
            "prefetch": self._prefetch,
            "release": self._release,
            "forget": self._forget,
            "stats": self._stats,
            "shutdown": lambda number, params: {},
        }
        number, method = int(request["id"]), str(request["method"])
        try:
            handle = methods.get(method)
            if handle is None:
                raise KvdError(f"the engine knows no {method!r}")
            self._outbox.send({"id": number, "result": handle(number, request.get("params", {}))})
        except KvdError as error:
            self._outbox.send({"id": number, "error": error.to_json()})
        except Exception as error:
            # Told to whoever waits before the process ends.
            failure = UnavailableError(f"the engine failed ({type(error).__name__}: {error})", hint="kvd logs")
            self._outbox.send({"id": number, "error": failure.to_json()})
            raise

    def _run_engine(self, batcher: Batcher) -> None:
        try:
            batcher.serve()
        except BaseException as error:  # raised again where it ends the process
            self._queue.put(error)

    def _beat(self) -> None:
        """A sign of life while the engine works."""
        now = monotonic()
        if now - self._beaten >= _BEAT_SECONDS:
            self._beaten = now
            self._outbox.event("beat", {})

    def _check_integrity(self) -> None:
        """Raises `RuntimeError`, which ends this process, when pool or cells are broken: they must not be used."""
        answerer = self._answerer
        if answerer is None:
            return
        try:
            answerer.check_integrity()
        except Exception as error:
            # Also where the check itself stumbles over what it finds.
            self._integrity_failures += 1
            self._outbox.event("integrity", {"reason": f"{type(error).__name__}: {error}"})
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

    def _counters(self) -> dict[str, int]:
        """See `kvd.worker.protocol.COUNTERS`."""
        counters = {"integrity_failures": self._integrity_failures} if self._integrity_failures else {}
        reuse = self._answerer.reuse if self._answerer else None
        if reuse is not None and self._pool is not None:
            counters |= {**reuse.pager.counts, "hot_evicted": self._pool.evictions}
        return counters

    def _load(self, number: int, params: Message) -> Message:
        if self._answerer is not None:
            raise UsageError("a model is loaded already")
        loaded = Loader(params, lambda event, data: self._outbox.event(event, data, number)).load()
        self._answerer, self._pool = loaded.answerer, loaded.pool
        reuse, batcher = loaded.answerer.reuse, loaded.answerer.batcher
        self._reranker = Reranker(loaded.answerer, reuse) if reuse else None
        batcher.beat = self._beat
        threading.Thread(target=self._run_engine, args=(batcher,), name="engine", daemon=True).start()
        # Another one for what is done ahead of questions.
        self._threads = ThreadPoolExecutor(int(params["parallel"]) + 1, "question")
        return loaded.facts

    def _ask(self, number: int, params: Message) -> Message:
        def answer(answerer: Answerer, question: Question, listener: Listener) -> Message:
            # Before anything is stored, so that it can be deleted whatever becomes of the answer.
            if quoted := answerer.quoted(question):
                self._outbox.event("quoted", {"blocks": quoted}, number)
            return answerer.answer(question, listener)

        return self._answered(number, params, answer)

    def _decide(self, number: int, params: Message) -> Message:
        choices = Choices(*(tuple(map(str, params["choices"][kind])) for kind in ("calls", "unshown", "files")))
        return self._answered(
            number, params, lambda answerer, asked, listener: Decision(answerer, asked, listener, choices).run()
        )

    def _answered(
        self, number: int, params: Message, answer: Callable[[Answerer, Question, Listener], Message]
    ) -> Message:
        answerer = self._answerer
        if answerer is None:
            raise UsageError("no model is loaded")
        try:
            question = question_from(params, answerer, lambda: number in self._cancelled)
            listener = self._listener(number)
            # A question that was cancelled may lack chunks.
            listener.step()
            return answer(answerer, question, listener)
        finally:
            self._done(number, answerer)

    def _done(self, number: int, answerer: Answerer) -> None:
        self._cancelled.discard(number)
        if answerer.reuse is None:
            return
        with answerer.reuse.lock:
            used = answerer.reuse.pager.take_used()
        if used:
            self._outbox.event("touch", {"keys": [key.hex() for key in used]})

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
            draft = question_from(params, answerer, interrupted)
            return answerer.prefetch(draft, int(params["client"]), interrupted)
        finally:
            self._cancelled.discard(number)
            if answerer.reuse is not None:
                with answerer.reuse.lock:
                    damaged = answerer.reuse.pager.take_damaged()
                self._outbox.damaged(damaged)

    def _release(self, number: int, params: Message) -> Message:
        """A client is gone, or wants nothing any more: what is leased to it may leave."""
        reuse = self._answerer.reuse if self._answerer else None
        if reuse is not None:
            with reuse.lock:
                reuse.pager.pool.lease(int(params["client"]), ())
        return {}

    def _forget(self, number: int, params: Message) -> Message:
        """A conversation is closed, or deleted: its cells are for others."""
        answerer = self._answerer
        if answerer is not None and params["conversation"]["state"]:
            answerer.forget(conversation_from(params["conversation"], answerer))
        return {}

    def _listener(self, number: int) -> Listener:
        def step() -> None:
            if number in self._cancelled:
                raise CancelledError("cancelled")

        return self._outbox.listener(number, step)

    def _stats(self, number: int, params: Message) -> Message:
        answerer = self._answerer
        return {
            "pool": _pool_stats(answerer.reuse) if answerer and answerer.reuse else {},
            "cells": answerer.batcher.call(lambda: _cells_stats(answerer)) if answerer else {},
            "memory": memory_in_use(),
        }


def _pool_stats(reuse: Reuse) -> dict[str, Any]:
    with reuse.lock:
        return reuse.pager.pool.stats()


def _cells_stats(answerer: Answerer) -> dict[str, int]:
    cells = answerer.resident.stats()
    if answerer.reuse is None:
        # Only the shared prefix stays, of cells whose size is not known.
        return {**cells, "used_bytes": answerer.engine.state_bytes(PREFIX)}
    return {**cells, "used_bytes": (cells["prefix"] + cells["resident"]) * answerer.reuse.shape.bytes_per_token}
