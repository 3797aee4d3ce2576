"""The client of the daemon: blocking, for commands. Needs only the standard library and kvd's bottom."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import kvd
from kvd.errors import BusyError, CancelledError, UnavailableError
from kvd.rpc import framing, messages
from kvd.rpc.launch import START_SECONDS, connect_or_start, connect_to_running
from kvd.rpc.messages import Message
from kvd.rpc.peer import daemon_pid

ProgressHandler = Callable[[Message], None]
"""Gets the `value` of each `$/progress`: `{"kind": "stage", ...}` or `{"kind": "token", "text"}`."""

_ANSWER_SECONDS = START_SECONDS
"""For what a healthy daemon answers at once, whatever else it does; systemd may be just starting it."""


class _GoneError(UnavailableError):
    """The daemon closed the connection."""


class Client:
    """One connection. Use `Client.connect()` or `Client.running()`, and close it (or use `with`)."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = framing.SocketReader(sock)
        self._next_id = 0
        self.server: Message = {}
        """What `initialize` answered."""

    @classmethod
    def connect(cls) -> Client:
        """Connect to a daemon of this version; start or restart it where needed.

        Raises `UnavailableError` when none can be had, `BusyError` when one of another version is at work.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            client = cls(connect_or_start())
            try:
                if client.initialize():
                    return client
                client._make_way(deadline)
            except _GoneError:
                # It ended between taking the connection and answering: the next one will do better.
                if time.monotonic() > deadline:
                    raise
            except BaseException:
                client.close()
                raise
            client.close()

    @classmethod
    def running(cls) -> Client | None:
        """A connection to the daemon that runs, whatever its version; None where none does."""
        sock = connect_to_running()
        if sock is None:
            return None
        client = cls(sock)
        try:
            client.initialize()
        except BaseException:
            client.close()
            raise
        return client

    def initialize(self) -> bool:
        """Introduce this client; true when the daemon is of this version and goes on running."""
        params = {"version": kvd.__version__, "client": "kvd"}
        self.server = self.call("initialize", params, timeout=_ANSWER_SECONDS)
        return self.server.get("version") == kvd.__version__ and not self.server.get("stopping")

    def _make_way(self, deadline: float) -> None:
        """Get rid of a daemon that is stopping, or of another version and idle."""
        version = self.server.get("version")
        if not self.server.get("stopping"):
            if self.server.get("active"):
                raise BusyError(f"the daemon is kvd {version} and still at work", hint="kvd stop")
            self.call("shutdown", {"mode": "drain"}, timeout=_ANSWER_SECONDS)
        if not self.wait_closed(deadline - time.monotonic()):
            raise BusyError("the daemon is stopping, and not done yet", hint="kvd stop --now")

    def call(
        self,
        method: str,
        params: Message,
        on_progress: ProgressHandler | None = None,
        timeout: float | None = None,
    ) -> Message:
        """Send a request, hand its progress to `on_progress`, return its result.

        Raises the daemon's error; `UnavailableError` when the daemon goes away or is silent for `timeout`
        seconds. On Ctrl-C the request is cancelled and `CancelledError` raised.
        """
        self._next_id += 1
        number = self._next_id
        if on_progress is not None:
            params = {**params, "progressToken": number}
        self._socket.settimeout(timeout)
        try:
            self._send(messages.request(number, method, params))
            return self._receive(number, on_progress)
        except KeyboardInterrupt:
            with suppress(UnavailableError):
                self._socket.settimeout(1.0)
                self._send(messages.request(None, messages.CANCEL, {"id": number}))
            raise CancelledError("interrupted") from None

    def _send(self, message: Message) -> None:
        data = framing.encode(message)
        if len(data) > framing.MAX_MESSAGE:
            raise UnavailableError("the request is too large for the daemon")
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._gone(error) from error

    def _receive(self, number: int, on_progress: ProgressHandler | None) -> Message:
        while True:
            message = self._next_message()
            params = message.get("params")
            if message.get("method") == messages.PROGRESS and isinstance(params, dict):
                if on_progress is not None and params.get("token") == number:
                    on_progress(params.get("value") or {})
            elif "error" in message and message.get("id") in (number, None):
                raise messages.error_from_answer(message["error"])
            elif message.get("id") == number:
                result: Message = message.get("result") or {}
                return result

    def _next_message(self) -> Message:
        try:
            body = self._reader.read_body()
            message: Any = None if body is None else framing.decode(body)
        except OSError as error:
            raise self._gone(error) from error
        except (framing.FramingError, framing.MalformedError) as error:
            raise UnavailableError(f"the daemon's answer makes no sense: {error}", hint="kvd logs") from error
        if not isinstance(message, dict):
            raise self._gone(None)
        return message

    @staticmethod
    def _gone(error: OSError | None) -> UnavailableError:
        if isinstance(error, TimeoutError):
            return UnavailableError("the daemon does not answer", hint="kvd stop --now")
        return _GoneError("the daemon stopped while it was at work", hint="try again, or look at: kvd logs")

    def wait_closed(self, seconds: float | None) -> bool:
        """Wait for the daemon to close this connection, the last thing it does; false if it has not."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._socket.settimeout(left)
            try:
                if not self._socket.recv(65536):
                    return True
            except TimeoutError:
                return False
            except OSError:
                return True

    def kill(self) -> None:
        """Kill the daemon. It holds its lock, so its process id can't be another's."""
        with suppress(OSError):
            if pid := daemon_pid():
                os.kill(pid, signal.SIGKILL)

    def abort(self) -> None:
        """End the connection from another thread: the daemon cancels its request, and `call` raises."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
