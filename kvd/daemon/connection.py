"""One client: its requests run beside each other, and end when it goes.

Whatever a client does hurts only itself: its unread answers, its unfinished messages and its requests in flight
are all bounded.
"""

from __future__ import annotations

import asyncio
import logging
import select
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any

from kvd.daemon.logs import describe_fault
from kvd.daemon.pace import Pace
from kvd.errors import BusyError, CancelledError, KvdError
from kvd.rpc import framing, messages
from kvd.rpc.messages import Message, Request, RequestId, RpcError
from kvd.rpc.streams import read_body

_log = logging.getLogger(__name__)

Emit = Callable[[Message], None]
Handler = Callable[[Request, Emit], Awaitable[Message]]
Refused = Callable[[Request, KvdError], None]
"""Told of a request that is answered with an error without having been handled."""

MAX_IN_FLIGHT = 32
_MESSAGE_SECONDS = 30.0
_UNREAD_SECONDS = 30.0
_MAX_UNREAD = 4 << 20
_CROWDED = 256 << 10
LINGER_SECONDS = 30.0
"""So long a client that goes on reading has for what was sent before it was closed,"""

_STALLED_SECONDS = 5.0
"""and so long one that reads nothing."""

_LOOK_SECONDS = 0.05
"""How often it is looked whether a client that sends no more is still there."""

_AT_ONCE = 4
"""Requests of one client that are worked on at the same time, so that no client has all threads."""


class Connection:
    """Serves one client until it leaves or is closed.

    `quiet` methods do not count as work, `patient` ones have lines of their own; of the others a few are worked on at
    the same time. `clients` says how many there are.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handle: Handler,
        refused: Refused,
        clients: Callable[[], int] = lambda: 1,
        quiet: frozenset[str] = frozenset(),
        patient: frozenset[str] = frozenset(),
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handle, self._refused = handle, refused
        self._clients = clients
        self._quiet, self._patient = quiet, patient
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._pace = Pace()
        self._tasks: dict[RequestId, asyncio.Task[None]] = {}
        self._working: set[RequestId] = set()
        self._patience: asyncio.TimerHandle | None = None
        """Of the end: ends a client that does not read what is left."""
        self.used_at = time.monotonic()
        self.pid = 0
        """Of the client's process, where it is known."""

    @property
    def active(self) -> int:
        """Requests in flight that are work."""
        return len(self._working)

    @property
    def idle(self) -> bool:
        return not self._tasks

    async def run(self) -> None:
        """Read and serve requests until the client leaves; then cancel those in flight.

        One that only sends no more is answered first. Returns when the connection is gone.
        """
        try:
            while (body := await read_body(self._reader, _MESSAGE_SECONDS)) is not None:
                began = self.used_at = time.monotonic()
                self._receive(body)
                await self._pace.keep(time.monotonic() - began, self._clients())
                await asyncio.wait_for(self._writer.drain(), _UNREAD_SECONDS)
            while self._tasks and not self._is_gone():
                await asyncio.wait(list(self._tasks.values()), timeout=_LOOK_SECONDS)
        except framing.FramingError as error:
            self._send(messages.error_answer(None, RpcError(messages.PARSE_ERROR, str(error))))
        except (OSError, TimeoutError):
            self._writer.transport.abort()
        finally:
            await self.cancel_all()
            self.close()
            with suppress(OSError):
                await self._writer.wait_closed()
            if self._patience is not None:
                self._patience.cancel()

    def _is_gone(self) -> bool:
        """Whether a client that sends no more does not read either."""
        if self._writer.is_closing():
            return True
        look = select.poll()
        # Asked for nothing it tells of what is over.
        look.register(self._writer.get_extra_info("socket"), 0)
        return bool(look.poll(0))

    def _receive(self, body: bytes) -> None:
        try:
            request = messages.parse_request(framing.decode(body))
        except framing.MalformedError as error:
            self._send(messages.error_answer(None, RpcError(messages.PARSE_ERROR, str(error))))
        except RpcError as error:
            self._send(messages.error_answer(None, error))
        else:
            self._accept(request)

    def _accept(self, request: Request) -> None:
        if request.id is None:
            # Of notifications only this one means something; a request nobody wants answered is no request.
            if request.method == messages.CANCEL and isinstance(request.params, dict):
                self._cancel(request.params.get("id"))
            return
        if request.id in self._tasks:
            self._refuse(request, RpcError(messages.INVALID_REQUEST, "this id is in use"))
        elif len(self._tasks) >= MAX_IN_FLIGHT:
            self._refuse(request, BusyError(f"{MAX_IN_FLIGHT} requests of this client are in flight"))
        else:
            self._start(request, request.id)

    def _refuse(self, request: Request, fault: KvdError) -> None:
        self._refused(request, fault)
        self._send(messages.error_answer(request.id, fault))

    def _start(self, request: Request, number: RequestId) -> None:
        if request.method not in self._quiet:
            self._working.add(number)
        task = asyncio.create_task(self._serve(request, number))
        self._tasks[number] = task

        def ended(task: asyncio.Task[None]) -> None:
            del self._tasks[number]
            self._working.discard(number)
            if task.cancelled():
                # Before its first step: it could not answer for itself.
                self._refuse(request, CancelledError("the request was cancelled"))

        task.add_done_callback(ended)

    async def _serve(self, request: Request, number: RequestId) -> None:
        try:
            async with nullcontext() if request.method in self._patient else self._turns:
                message = messages.answer(number, await self._handle(request, self._emitter(request.params)))
        except KvdError as error:
            message = messages.error_answer(number, error)
        except asyncio.CancelledError:
            message = messages.error_answer(number, CancelledError("the request was cancelled"))
        except Exception as error:
            _log.error("internal error: %s", describe_fault(error))
            fault = RpcError(messages.INTERNAL_ERROR, f"internal error ({type(error).__name__})", "kvd logs")
            message = messages.error_answer(number, fault)
        self.used_at = time.monotonic()
        self._send(message)

    def _cancel(self, number: Any) -> None:
        task = self._tasks.get(number) if type(number) in (int, str) else None
        if task is not None:
            task.cancel()

    def _emitter(self, params: Any) -> Emit:
        """A function that sends `$/progress` with the token of `params`, or does nothing where there is none."""
        token = params.get("progressToken") if isinstance(params, dict) else None
        if token is None:
            return lambda value: None

        def emit(value: Message) -> None:
            # Whoever reads slowly gets fewer reports of stages, but every token.
            if value.get("kind") == "stage" and self._unread() > _CROWDED:
                return
            self._send(messages.request(None, messages.PROGRESS, {"token": token, "value": value}))

        return emit

    def _unread(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    def _send(self, message: Message) -> None:
        if self._writer.is_closing():
            return
        if self._unread() > _MAX_UNREAD:
            _log.warning("closed a client that does not read")
            self._writer.transport.abort()
            return
        with suppress(OSError, RuntimeError):
            self._writer.write(framing.encode(message))

    async def cancel_all(self) -> None:
        """Cancel the requests in flight and wait until they have let go."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def close(self) -> None:
        """Close after what was sent is read; a client that does not read is not waited for."""
        with suppress(OSError, RuntimeError):
            self._writer.close()
            if self._unread() and self._patience is None:
                self._wait_for_reader(self._unread(), asyncio.get_running_loop().time() + LINGER_SECONDS)

    def make_room(self) -> None:
        """Close for the sake of another client: at once if much is unread."""
        if self._unread() > _CROWDED:
            self._writer.transport.abort()
        else:
            self.close()

    def _wait_for_reader(self, unread: int, until: float) -> None:
        """Look again later whether some of `unread` was read; `until` is the loop's time."""

        def look() -> None:
            left = self._unread()
            if 0 < left < unread and loop.time() < until:
                self._wait_for_reader(left, until)
            elif left:
                self._writer.transport.abort()

        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(min(_STALLED_SECONDS, until - loop.time()), look)
