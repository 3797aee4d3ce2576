"""Life of the daemon: accept, dispatch, look after itself, drain, end."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import kvd
from kvd.config import process_environment
from kvd.daemon.admission import is_own, most_clients, pid_of, whom_to_close
from kvd.daemon.connection import LINGER_SECONDS, Connection, Emit
from kvd.daemon.exclusive import Place
from kvd.daemon.logs import describe_fault
from kvd.daemon.session_methods import note_methods, session_methods
from kvd.errors import BusyError, CancelledError, KvdError, UnavailableError, UsageError
from kvd.rpc import framing, messages
from kvd.rpc.messages import Message, Request, RpcError
from kvd.rpc.params import (
    AskParams,
    ForgetParams,
    GcParams,
    IndexParams,
    InitializeParams,
    MetricsParams,
    PrefetchParams,
    SearchParams,
    ShutdownParams,
    StatusParams,
    parse_params,
)
from kvd.service.asker import Question
from kvd.service.confine import confined
from kvd.service.service import Service
from kvd.service.turns import CLIENT

_log = logging.getLogger(__name__)

_THREADS = 32
_CHORES_SECONDS = 15.0
_MINUTE_SECONDS = 60.0
_GOODBYE_SECONDS = LINGER_SECONDS + 1.0
"""What clients have left to read is theirs for so long, and the place another daemon's."""

_QUIET = frozenset({"initialize", "status", "metrics", "shutdown"})
_PATIENT = frozenset({"initialize", "shutdown", "ask", "prefetch"})
"""They cost next to nothing, or wait for the engine in a line of their own."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request: the number of its connection, and where its progress goes."""

    client: int
    emit: Emit


class Daemon:
    """Serves clients of `place` until told to stop."""

    def __init__(self, place: Place, service: Service) -> None:
        self._place = place
        self._service = service
        self._clients: set[Connection] = set()
        self._most = most_clients()
        self._numbers = itertools.count(1)
        self._serving: set[asyncio.Task[None]] = set()
        self._started = self._used_at = time.monotonic()
        self._environment = process_environment()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._methods: dict[str, tuple[type[Any], Callable[[Any, Caller], Awaitable[Message]]]] = {
            "initialize": (InitializeParams, self._initialize),
            "status": (StatusParams, self._status),
            "metrics": (MetricsParams, self._metrics),
            "index": (IndexParams, self._index),
            "search": (SearchParams, self._search),
            "ask": (AskParams, self._ask),
            "prefetch": (PrefetchParams, self._prefetch),
            "forget": (ForgetParams, self._forget),
            "gc": (GcParams, self._gc),
            "shutdown": (ShutdownParams, self._shutdown),
            **session_methods(service),
            **note_methods(service),
        }

    async def run(self) -> None:
        """Returns when everything is finished and written."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="work"))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        # From 3.13 on it would remove the socket, which may be systemd's.
        more: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        listening = self._place.socket
        server = await asyncio.start_unix_server(self._welcome, sock=listening, limit=framing.MAX_HEADER, **more)
        _log.info("kvd %s listens, pid %d", kvd.__version__, os.getpid())
        chores = asyncio.create_task(self._chores())
        self._service.start()
        await self._stop.wait()
        await self._drain()
        chores.cancel()
        await self._service.close()
        server.close()
        self._place.leave()
        for client in list(self._clients):
            client.close()
        if self._serving:
            await asyncio.wait(list(self._serving), timeout=_GOODBYE_SECONDS)
        _log.info("kvd ends, pid %d", os.getpid())

    def stop(self) -> None:
        """Finish what is asked already, then end; told twice: cancel it."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def _drain(self) -> None:
        while self._active() and not self._hurry.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), 0.05)
        for client in list(self._clients):
            await client.cancel_all()

    def _active(self) -> int:
        return sum(client.active for client in self._clients)

    async def _chores(self) -> None:
        while True:
            await asyncio.sleep(_CHORES_SECONDS)
            try:
                await self._service.unload_if_idle()
                await self._service.delete_old_sessions()
            except Exception as error:
                _log.error("a chore failed: %s", describe_fault(error))
            self._end_if_idle()
            if not self._place.is_ours():
                _log.warning("the socket is gone, so nobody can reach this daemon: it ends")
                self.stop()

    def _end_if_idle(self) -> None:
        """End a daemon that nobody was connected to for as long as the settings say, and that owes nobody anything."""
        if self._clients or self._service.busy:
            self._used_at = time.monotonic()
        minutes = self._service.daemon_idle_minutes()
        if minutes and time.monotonic() - self._used_at >= minutes * _MINUTE_SECONDS:
            _log.info("no client for %d minutes: the daemon ends", minutes)
            self.stop()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        if not is_own(sock):
            _log.warning("refused a client of another user")
            writer.close()
            return
        if len(self._clients) >= self._most and not self._make_room():
            fault = messages.error_answer(None, BusyError(f"{self._most} clients are being served"))
            writer.write(framing.encode(fault))
            writer.close()
            return
        number = next(self._numbers)
        handle = partial(self._dispatch, number)
        client = Connection(reader, writer, handle, self._refused, lambda: len(self._clients), _QUIET, _PATIENT)
        client.pid = pid_of(sock)
        self._clients.add(client)
        task = asyncio.create_task(client.run())
        self._serving.add(task)
        try:
            await task
        finally:
            self._used_at = time.monotonic()
            self._clients.discard(client)
            self._serving.discard(task)
            self._service.left(number)

    def _make_room(self) -> bool:
        """Close a client that has nothing in flight, if there is one."""
        leaving = whom_to_close(self._clients)
        if leaving is None:
            return False
        self._clients.discard(leaving)
        leaving.make_room()
        return True

    async def _dispatch(self, client: int, request: Request, emit: Emit) -> Message:
        started, outcome = time.monotonic(), KvdError.code
        # Each request runs in a task, and so in a context, of its own.
        CLIENT.set(client)
        try:
            result = await self._answer(request, Caller(client, emit))
            outcome = "ok"
            return result
        except KvdError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = CancelledError.code
            raise
        finally:
            seconds = time.monotonic() - started
            self._count(request, outcome, seconds)
            if request.method in self._methods:
                _log.info("%s %s in %.0f ms", request.method, _outcome_words(outcome), seconds * 1000)

    async def _answer(self, request: Request, caller: Caller) -> Message:
        if request.method not in self._methods:
            raise RpcError(messages.METHOD_NOT_FOUND, f"no such method: {request.method[:50]!r}")
        if self._stop.is_set() and request.method not in _QUIET:
            raise UnavailableError("the daemon is stopping", hint="try again in a moment")
        kind, method = self._methods[request.method]
        return await method(parse_params(kind, request.params), caller)

    def _refused(self, request: Request, fault: KvdError) -> None:
        self._count(request, fault.code, 0.0)

    def _count(self, request: Request, outcome: str, seconds: float) -> None:
        # What clients make up is no label.
        method = request.method if request.method in self._methods else "unknown"
        self._service.metrics.count_request(method, outcome, seconds)

    async def _initialize(self, params: InitializeParams, caller: Caller) -> Message:
        return {
            "version": kvd.__version__,
            "protocol": messages.PROTOCOL,
            "pid": os.getpid(),
            "active": self._active(),
            "stopping": self._stop.is_set(),
            "environment": self._environment,
        }

    async def _status(self, params: StatusParams, caller: Caller) -> Message:
        daemon = {
            "version": kvd.__version__,
            "pid": os.getpid(),
            "uptime_seconds": round(time.monotonic() - self._started, 1),
            "clients": len(self._clients),
            "active": self._active(),
            "stopping": self._stop.is_set(),
        }
        return {"running": True, "daemon": daemon, **await self._service.status()}

    async def _metrics(self, params: MetricsParams, caller: Caller) -> Message:
        return await self._service.exposition()

    async def _index(self, params: IndexParams, caller: Caller) -> Message:
        return await self._service.index(messages.check_folder(params.path), params.background, caller.emit)

    async def _search(self, params: SearchParams, caller: Caller) -> Message:
        query = messages.check_text("query", params.query)
        repo, only = messages.check_folder(params.repo), confined(params.paths, params.languages)
        return await self._service.search(query, repo, params.top_k, caller.emit, params.rerank, only, params.rerank_ms)

    async def _ask(self, params: AskParams, caller: Caller) -> Message:
        question = Question(
            text=messages.check_text("question", params.question),
            received=time.monotonic(),
            top_k=params.top_k,
            only=confined(params.paths, params.languages),
            budget=params.budget,
            max_tokens=params.max_tokens,
            reuse=params.reuse,
            rerank_ms=params.rerank_ms,
            session=params.session,
            memory=params.memory,
            rounds=params.rounds,
        )
        return await self._service.ask(messages.check_folder(params.repo), question, caller.emit)

    async def _prefetch(self, params: PrefetchParams, caller: Caller) -> Message:
        draft = Question(
            text=messages.check_text("question", params.question),
            received=time.monotonic(),
            top_k=params.top_k,
            only=confined(params.paths, params.languages),
            budget=params.budget,
        )
        return await self._service.prefetch(caller.client, messages.check_folder(params.repo), draft)

    async def _forget(self, params: ForgetParams, caller: Caller) -> Message:
        return await self._service.forget(messages.check_folder(params.path))

    async def _gc(self, params: GcParams, caller: Caller) -> Message:
        return await self._service.gc()

    async def _shutdown(self, params: ShutdownParams, caller: Caller) -> Message:
        if params.mode not in ("drain", "cancel"):
            raise UsageError("mode must be drain or cancel")
        if params.mode == "cancel":
            self._hurry.set()
        self._stop.set()
        return {"active": self._active(), "pid": os.getpid()}


def _outcome_words(outcome: str) -> str:
    return outcome if outcome in ("ok", CancelledError.code, KvdError.code) else f"failed ({outcome})"
