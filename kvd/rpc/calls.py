"""Requests to the daemon from programs with an event loop: each has a thread and a connection of its own."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import TracebackType

from kvd.errors import CancelledError, KvdError
from kvd.rpc.client import Client
from kvd.rpc.messages import Message


class Call:
    """One request, from `async with` on; leaving it before its end cancels it in the daemon.

    `next` gives the `value` of each `$/progress` as it comes; the result is in `result` afterwards.
    """

    def __init__(self, method: str, params: Message, *, progress: bool = True) -> None:
        self.result: Message = {}
        self._method, self._params = method, params
        self._on_progress = self._tell if progress else None
        self._loop = asyncio.get_running_loop()
        self._values: asyncio.Queue[Message | None] = asyncio.Queue()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._cancelled = False

    def start(self) -> None:
        """Send it. Who calls this instead of `async with` has to call `cancel`."""
        # A daemon thread: starting the daemon can't be interrupted, and should not keep the process.
        threading.Thread(target=self._work, daemon=True).start()

    async def __aenter__(self) -> Call:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def next(self) -> Message | None:
        """The next value; None after the last one. Raises the daemon's error, `CancelledError` after `cancel`."""
        value = await self._values.get()
        if value is None and self._error is not None:
            raise self._error
        return value

    def cancel(self) -> None:
        """End the request; nothing happens where it has ended."""
        with self._lock:
            self._cancelled = True
            if self._client is not None:
                self._client.abort()

    def _work(self) -> None:
        try:
            with Client.connect() as client:
                self._take(client)
                self.result = client.call(self._method, self._params, self._on_progress)
        except KvdError as error:
            self._error = CancelledError("the request was cancelled") if self._cancelled else error
        except Exception as error:
            self._error = KvdError(f"{type(error).__name__}: {error}", hint="kvd logs")
        self._tell(None)

    def _take(self, client: Client) -> None:
        with self._lock:
            self._client = client
            if self._cancelled:
                raise CancelledError("the request was cancelled")

    def _tell(self, value: Message | None) -> None:
        # The loop is closed where the program has ended meanwhile.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._values.put_nowait, value)


async def call(method: str, params: Message) -> Message:
    """The result of a request that has no progress."""
    async with Call(method, params, progress=False) as running:
        await running.next()
        return running.result
