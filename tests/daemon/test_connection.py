"""How one connection ends, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from kvd.daemon import connection
from kvd.daemon.connection import Connection, Emit
from kvd.rpc import framing, messages
from kvd.rpc.messages import Message, Request

BIG = {"answer": "x" * 3_000_000}

Handler = Callable[[Request, Emit], Awaitable[Message]]


@asynccontextmanager
async def served(handle: Handler) -> AsyncIterator[tuple[Connection, socket.socket, asyncio.Task[None]]]:
    """A connection, the client's end of it after a request, and its run. Nothing may fail in the loop."""
    loop = asyncio.get_running_loop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: faults.append(context))
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=ours, limit=framing.MAX_HEADER)
    server = Connection(reader, writer, handle, Mock())
    running = asyncio.create_task(server.run())
    await loop.sock_sendall(theirs, framing.encode(messages.request(1, "ask", {})))
    try:
        yield server, theirs, running
    finally:
        theirs.close()
        await asyncio.wait_for(running, 10.0)
    assert faults == []


async def read(theirs: socket.socket, seconds: float = 0.0) -> bytes:
    """All that comes until the end of the stream, with a rest after each piece."""
    data = b""
    while piece := await asyncio.get_running_loop().sock_recv(theirs, 500_000):
        data += piece
        await asyncio.sleep(seconds)
    return data


def result_in(data: bytes) -> Any:
    header, _, body = data.partition(framing.END)
    assert framing.content_length(header + framing.END) == len(body)
    return framing.decode(body)["result"]


async def big(request: Request, emit: Emit) -> Message:
    return BIG


def test_nothing_is_kept_of_a_client_that_has_left() -> None:
    async def body() -> weakref.ref[Any]:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        kept = weakref.ref(writer.transport)
        theirs.close()
        await Connection(reader, writer, Mock(), Mock()).run()
        await writer.wait_closed()
        return kept

    async def look() -> None:
        kept = await body()
        gc.collect()
        # Not for the time either that is given to clients which have something to read.
        assert kept() is None

    asyncio.run(look())


def test_who_only_sends_no_more_is_answered() -> None:
    async def body() -> None:
        last = asyncio.Event()

        async def handle(request: Request, emit: Emit) -> Message:
            await last.wait()
            return BIG

        async with served(handle) as (server, theirs, running):
            theirs.shutdown(socket.SHUT_WR)
            reading = asyncio.create_task(read(theirs))
            while not server._reader.at_eof():
                await asyncio.sleep(0.01)
            last.set()
            assert result_in(await asyncio.wait_for(reading, 10.0)) == BIG
            await asyncio.wait_for(running, 10.0)

    asyncio.run(body())


@pytest.mark.parametrize("first", [None, socket.SHUT_WR])
def test_who_is_gone_is_noticed_and_what_it_asked_is_cancelled(first: int | None) -> None:
    async def body() -> None:
        begun, cancelled = asyncio.Event(), asyncio.Event()

        async def handle(request: Request, emit: Emit) -> Message:
            begun.set()
            try:
                return await asyncio.Future()
            finally:
                cancelled.set()

        async with served(handle) as (_, theirs, _):
            await begun.wait()
            if first is not None:
                theirs.shutdown(first)
                # It is taken for one that reads.
                await asyncio.sleep(3 * connection._LOOK_SECONDS)
                assert not cancelled.is_set()
            theirs.close()
            await asyncio.wait_for(cancelled.wait(), 2.0)

    asyncio.run(body())


def test_who_reads_on_gets_what_was_finished_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_STALLED_SECONDS", 0.5)

    async def body() -> None:
        async with served(big) as (server, theirs, running):
            while not server._unread():
                await asyncio.sleep(0.01)
            server.close()
            # Longer altogether than anybody may rest.
            assert result_in(await read(theirs, 0.05)) == BIG
            await asyncio.wait_for(running, 10.0)
            # What would have ended a client that does not read has nothing to end any more.
            await asyncio.sleep(2 * connection._STALLED_SECONDS)

    asyncio.run(body())


@pytest.mark.parametrize(("stalled", "whole", "rest"), [(0.2, 30.0, 60.0), (5.0, 0.3, 0.1)])
def test_who_reads_nothing_or_for_too_long_is_left(
    monkeypatch: pytest.MonkeyPatch, stalled: float, whole: float, rest: float
) -> None:
    monkeypatch.setattr(connection, "_STALLED_SECONDS", stalled)
    monkeypatch.setattr(connection, "LINGER_SECONDS", whole)

    async def body() -> None:
        async with served(big) as (server, theirs, running):
            while not server._unread():
                await asyncio.sleep(0.01)
            server.close()
            reading = asyncio.create_task(read(theirs, rest))
            await asyncio.wait_for(running, 3.0)
            reading.cancel()

    asyncio.run(body())
