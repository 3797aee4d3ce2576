"""What a connection leaves behind."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from typing import Any
from unittest.mock import Mock

from kvd.daemon.connection import Connection


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
