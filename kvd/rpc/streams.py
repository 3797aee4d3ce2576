"""`kvd.rpc.framing` for messages to the daemon, with asyncio; commands start faster without that."""

from __future__ import annotations

import asyncio

from kvd.rpc.framing import END, MAX_HEADER, MAX_REQUEST, FramingError, content_length


async def read_body(reader: asyncio.StreamReader, patience: float) -> bytes | None:
    """The next body; None at the end of the stream between two messages.

    Waits for a message as long as it takes, but once its first byte is here the rest has to follow within
    `patience` seconds. `reader` has to be made with `limit=MAX_HEADER`.
    """
    first = await reader.read(1)
    if not first:
        return None
    try:
        return await asyncio.wait_for(_rest(reader, first), patience)
    except TimeoutError:
        raise FramingError("half a message, and the rest did not come") from None
    except asyncio.IncompleteReadError:
        raise FramingError("the stream ended within a message") from None


async def _rest(reader: asyncio.StreamReader, first: bytes) -> bytes:
    try:
        header = first + await reader.readuntil(END)
    except asyncio.LimitOverrunError:
        raise FramingError(f"a header of more than {MAX_HEADER} bytes") from None
    return await reader.readexactly(content_length(header, MAX_REQUEST))
