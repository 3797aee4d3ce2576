"""One process of the engine: frames in and out, its blocks to the store, its death told to whoever waits."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kvd.ends import describe_end, end_hint
from kvd.errors import KvdError, UnavailableError, error_from_json
from kvd.kv.store import StoredBlock
from kvd.service.store_writer import StoreWriter
from kvd.worker.protocol import ProtocolError, async_read_frame, encode_frame

_log = logging.getLogger(__name__)

Event = Callable[[str, dict[str, Any]], None]
"""Gets the name and the data of an event."""

Counted = Callable[[Mapping[str, int]], None]
"""Gets the child's counters, `kvd.worker.protocol.COUNTERS`, as they are since its start."""

_CANCEL_SECONDS = 20.0
_ANSWERED = ("ask", "decide", "rank")
"""Methods that somebody waits for."""
_STOP_SECONDS = 10.0
_READ_AHEAD = 1 << 20
_MAX_LOG_LINE = 1_000


@dataclass(frozen=True, slots=True)
class Asking:
    """A request on its way: cancel it by its id."""

    id: int
    method: str
    answer: asyncio.Future[dict[str, Any]]
    on_event: Event


class EngineChild:
    """Started once, never restarted: a dead child is replaced by a new object."""

    def __init__(self, command: Sequence[str], writer: StoreWriter, counted: Counted) -> None:
        self._command = tuple(command)
        self._writer, self._counted = writer, counted
        self._process: asyncio.subprocess.Process | None = None
        self._ids = itertools.count(1)
        self._askings: dict[int, Asking] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._killed = ""
        """Why kvd itself ended the process, or ""."""
        self._dead = False
        self.frames = 0
        """How many it has sent."""

    @property
    def alive(self) -> bool:
        """True from the start of the program to its end."""
        return not self._dead

    @property
    def died(self) -> bool:
        """True when it has ended, other than by kvd's doing."""
        return self._dead and self._process is not None and not self._killed and self._process.returncode != 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def crashed(self) -> bool:
        """True when it was ended by a fault of its own, as by an assertion of ggml or a failed call of CUDA.

        SIGKILL is somebody else's doing, and SIGILL no matter of how much is asked of the machine.
        """
        return self._process is not None and self._process.returncode in (-signal.SIGABRT, -signal.SIGSEGV)

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", limit=_READ_AHEAD
            )
        except OSError as error:
            self._dead = True
            raise UnavailableError(f"can't start the engine: {error.strerror}", hint="kvd logs") from error
        self._process = process
        _log.info("engine %d started", process.pid)
        if self._dead:
            self.kill("it was not needed any more when it had started")
        self._tasks = [asyncio.create_task(self._read(process)), asyncio.create_task(_log_stderr(process))]

    def send(self, method: str, params: dict[str, Any], on_event: Event) -> Asking:
        """Send a request. Its future raises the child's error, or `UnavailableError` at the child's death."""
        asking = Asking(next(self._ids), method, asyncio.get_running_loop().create_future(), on_event)
        asking.answer.add_done_callback(_take_note)
        if self._dead:
            asking.answer.set_exception(self._obituary())
            return asking
        self._askings[asking.id] = asking
        self._write({"id": asking.id, "method": method, "params": params})
        return asking

    def cancel(self, asking: Asking) -> None:
        """Tell the child to stop what it was asked, if it has not answered."""
        if not asking.answer.done():
            self._write({"method": "cancel", "params": {"id": asking.id}})

    async def give_up(self, asking: Asking) -> None:
        """Tell the child to stop the question that it answers.

        One that does not listen is ended itself, unless others ask it something: a long step is not worth their
        answers.
        """
        self.cancel(asking)
        done, _ = await asyncio.wait({asking.answer}, timeout=_CANCEL_SECONDS)
        others = any(other.method in _ANSWERED and other is not asking for other in self._askings.values())
        if not done and not others:
            self.kill("it did not stop when it was told to")
            await asyncio.wait({asking.answer})

    def _write(self, message: dict[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None or self._dead:
            return
        # Without drain: a request is small against what its answer takes, and comes one at a time.
        with suppress(OSError, RuntimeError):
            process.stdin.write(encode_frame(message))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        try:
            assert process.stdout is not None
            while (frame := await async_read_frame(process.stdout)) is not None:
                self._route(*frame)
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            self.kill(f"it sent something unreadable ({type(error).__name__})")
        await self._buried(process)

    async def _buried(self, process: asyncio.subprocess.Process) -> None:
        """The child closed its output: make sure that it is gone, and tell everybody who waits."""
        try:
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        except TimeoutError:
            self.kill("it closed its output but did not end")
            await process.wait()
        self._dead = True
        if self._killed:
            _log.warning("engine %d was ended by kvd: %s", process.pid, self._killed)
        else:
            level = logging.INFO if process.returncode == 0 else logging.ERROR
            _log.log(level, "engine %d ended: %s", process.pid, describe_end(process.returncode))
        for asking in self._askings.values():
            if not asking.answer.done():
                asking.answer.set_exception(self._obituary())
        self._askings.clear()

    def _obituary(self) -> UnavailableError:
        code = self._process.returncode if self._process else None
        hint = end_hint(None if self._killed else code, "ask again, or look at: kvd logs")
        return UnavailableError(f"the engine stopped ({self._killed or describe_end(code)})", hint=hint)

    def _route(self, message: dict[str, Any], blob: bytes) -> None:
        self.frames += 1
        if "counters" in message:
            self._counted(dict(message["counters"]))
        number, event = message.get("id"), message.get("event")
        if number is None:
            self._unasked_event(str(event), message["data"], blob)
            return
        asking = self._askings.get(number)
        if asking is None or asking.answer.done():
            self._askings.pop(number, None)
        elif event is not None:
            asking.on_event(str(event), message["data"])
        else:
            del self._askings[number]
            _settle(asking.answer, message)

    def _unasked_event(self, event: str, data: dict[str, Any], blob: bytes) -> None:
        if event == "blocks":
            self._writer.put(_blocks(data["blocks"], blob))
        elif event == "touch":
            self._writer.touch([bytes.fromhex(key) for key in data["keys"]])
        elif event == "drop":
            _log.warning("engine: %d stored blocks are unusable: %s", len(data["keys"]), data.get("reason"))
            self._writer.drop([bytes.fromhex(key) for key in data["keys"]])
        elif event == "integrity":
            _log.error("engine: its KV in memory is broken, so it ends: %s", data.get("reason"))

    def kill(self, why: str) -> None:
        """End the process, if it has not ended; `why` goes to the log, and to whoever waits for it."""
        if self._process is not None and self._process.returncode is None:
            self._killed = self._killed or why
            with suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self) -> None:
        """Ask the child to end, wait a little, then make it; returns when it is gone and all was read."""
        process = self._process
        if process is None:
            self._dead = True
        if process is None or not self._tasks:
            return
        if not self._dead:
            asking = self.send("shutdown", {}, lambda event, data: None)
            if process.stdin is not None:
                process.stdin.close()
            await asyncio.wait({self._tasks[0]}, timeout=_STOP_SECONDS)
            self.kill("it did not end when it was told to")
            with suppress(KvdError):
                await asking.answer
        await asyncio.wait(self._tasks)


def _take_note(answer: asyncio.Future[dict[str, Any]]) -> None:
    """Look at the exception: asyncio reports those that nobody waits for any more."""
    if not answer.cancelled():
        answer.exception()


def _settle(answer: asyncio.Future[dict[str, Any]], message: dict[str, Any]) -> None:
    if "error" in message:
        answer.set_exception(error_from_json(message["error"]))
    else:
        answer.set_result(message["result"])


def _blocks(entries: list[dict[str, Any]], blob: bytes) -> list[StoredBlock]:
    """Cut the blob of a `blocks` event. Raises `ValueError` when the sizes do not add up."""
    if sum(entry["size"] for entry in entries) != len(blob):
        raise ValueError("blocks and blob differ")
    blocks, start = [], 0
    for entry in entries:
        key, parent, fingerprint = (bytes.fromhex(entry[name]) for name in ("key", "parent", "fingerprint"))
        data = blob[start : start + entry["size"]]
        blocks.append(StoredBlock(key, parent, fingerprint, entry["tokens"], data, entry["seconds"]))
        start += entry["size"]
    return blocks


async def _log_stderr(process: asyncio.subprocess.Process) -> None:
    """The child's stderr goes to the daemon's log line by line, so that rotation covers it."""
    assert process.stderr is not None
    while True:
        try:
            line = await process.stderr.readline()
        except ValueError:
            # A line longer than the buffer: asyncio has thrown it away.
            continue
        if not line:
            return
        text = line.decode("utf-8", "replace").rstrip()
        if text:
            _log.info("engine %d: %s", process.pid, text[:_MAX_LOG_LINE])
