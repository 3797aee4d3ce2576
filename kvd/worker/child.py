"""The child's requests: load a model, ask, prefetch, stats, shutdown. See `kvd.worker.protocol` for the frames."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, BinaryIO

import torch

from kvd.engine.llama import LlamaEngine
from kvd.engine.memory import memory_in_use
from kvd.errors import CancelledError, KvdError, ModelError, UnavailableError, UsageError
from kvd.kv.codec import DEFAULT
from kvd.kv.pager import Damaged, Pager
from kvd.kv.policies import policy_named
from kvd.kv.pool import HotPool, pool_bytes_for
from kvd.kv.store import BlockStore, StoredBlock
from kvd.types import Progress
from kvd.worker.answerer import Answerer, Listener
from kvd.worker.decoding import LIVE, PREFIX, SPARE, WORK, decode_run
from kvd.worker.gate import VERDICTS, Gate, Verdict, gate_key, verdict_from_json
from kvd.worker.probe import Movable, NotMovableError, probe
from kvd.worker.prompt import PromptBuilder
from kvd.worker.protocol import Message, encode_frame, read_frame
from kvd.worker.requests import question_from
from kvd.worker.reuse import Reuse, fingerprint

MAX_RECOMPUTE = 64
IDLE_SECONDS = 5.0
"""After so long without a question the integrity of what is in memory is checked."""


class Child:
    """Serves one daemon over two binary files. One thread reads, the caller of `serve` runs the engine."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests, self._answers = requests, answers
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._cancelled: set[int] = set()
        self._engine: LlamaEngine | None = None
        self._answerer: Answerer | None = None
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
            if method in ("load", "ask", "prefetch"):
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
        if self._engine is not None:
            raise UsageError("a model is loaded already")
        started = perf_counter()
        threads = int(params["threads"])
        engine = LlamaEngine(Path(params["model_path"]), int(params["n_ctx"]), threads, int(params["gpu_layers"]))
        try:
            loaded = self._set_up(number, engine, params)
        except BaseException:
            engine.close()
            raise
        self._engine = engine
        return {**loaded, "load_ms": round((perf_counter() - started) * 1000, 1)}

    def _set_up(self, number: int, engine: LlamaEngine, params: Message) -> Message:
        if not engine.has_decoder:
            raise ModelError(f"{params['model_path']} is not a text model", hint="kvd setup")
        torch.set_num_threads(engine.threads)
        prompts = PromptBuilder(engine, bool(params["short_headers"]))
        decode_run(engine, prompts.prefix, 0, PREFIX, _go_on)
        reuse, verdict = self._judged(number, engine, prompts, params)
        chosen = int(params["recompute"])
        recompute = min(chosen, MAX_RECOMPUTE) if chosen >= 0 else verdict.recompute
        residents = int(params["resident_prompts"])
        self._answerer = Answerer(engine, prompts, reuse, recompute, verdict.reuse != "off", residents)
        return {
            "model": params["model_name"],
            "n_ctx": engine.n_ctx,
            "reuse": "on" if reuse else verdict.reuse,
            "reuse_reason": verdict.reason,
            "gate": verdict.to_json() if verdict.key else None,
            "kv_bytes_per_token": reuse.shape.bytes_per_token if reuse else 0,
            "gpu": "yes" if engine.gpu else "",
            "recompute": recompute,
        }

    def _judged(
        self, number: int, engine: LlamaEngine, prompts: PromptBuilder, params: Message
    ) -> tuple[Reuse | None, Verdict]:
        """Reuse for this model if the gate lets it, and the gate's verdict: the known one where it still holds."""
        if not params["reuse"]:
            return None, Verdict("", "off", "switched off in the settings")
        key = gate_key(str(params["model_sha256"]), prompts, DEFAULT.id)
        known = verdict_from_json(params["gate"]) if params.get("gate") else None
        if known is not None and (known.key != key or known.reuse not in VERDICTS):
            known = None
        gate = Gate(engine, prompts, _go_on)
        try:
            movable = probe(engine, (LIVE, WORK, SPARE))
        except NotMovableError as error:
            return None, Verdict(key, gate.prefix_verdict(), str(error))
        if known is not None and known.reuse != "on":
            return None, known
        reuse = self._make_reuse(engine, prompts, movable, params)
        if known is None:
            known = self._checked(gate, reuse, key, number)
        if known.reuse == "on":
            # What the gate looked up was no question's.
            reuse.pager.counts.clear()
            return reuse, known
        self._pool = None
        return None, known

    def _checked(self, gate: Gate, reuse: Reuse, key: str, number: int) -> Verdict:
        try:
            return gate.check(reuse, key, lambda progress: self._event("stage", progress.to_json(), number))
        except ModelError as error:
            # A context too small for the check, say. Without a key nobody keeps this.
            return Verdict("", gate.prefix_verdict(), f"the model could not be checked: {error.message}")

    def _make_reuse(self, engine: LlamaEngine, prompts: PromptBuilder, movable: Movable, params: Message) -> Reuse:
        capacity = pool_bytes_for(movable.shape, engine.n_ctx, int(params["pool_bytes"]))
        self._pool = HotPool(movable.shape, capacity, policy=policy_named(str(params["eviction"])))
        store = BlockStore(Path(params["store_path"]), readonly=True)
        whose = fingerprint(str(params["model_sha256"]), movable, prompts)
        return Reuse(engine, prompts, movable, Pager(self._pool, store, movable.shape, whose))

    def _ask(self, number: int, params: Message) -> Message:
        answerer = self._answerer
        if answerer is None:
            raise UsageError("no model is loaded")
        try:
            return answerer.answer(question_from(params, answerer.prompts), self._listener(number))
        finally:
            self._cancelled.discard(number)
            if answerer.reuse is not None and (used := answerer.reuse.pager.take_used()):
                self._event("touch", {"keys": [key.hex() for key in used]})

    def _prefetch(self, number: int, params: Message) -> Message:
        answerer = self._answerer
        if answerer is None:
            raise UsageError("no model is loaded")
        draft = question_from(params, answerer.prompts)
        try:
            return answerer.prefetch(draft, int(params["client"]), lambda: number in self._cancelled)
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


def _go_on() -> None:
    """Nobody cancels what belongs to loading."""


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
