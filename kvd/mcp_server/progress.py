"""The daemon's progress as MCP's, and a call that is cancelled with the tool's."""

from __future__ import annotations

import asyncio
import time

from mcp.server.mcpserver import Context

from kvd.rpc.calls import Call
from kvd.rpc.messages import Message
from kvd.rpc.stages import describe

_LEAST_SECONDS = 0.2
"""Between two notifications of the same stage."""

_SILENT_SECONDS = 5.0
"""After that the last one is repeated: many clients give up on a call that they hear nothing of for a minute."""


async def call_with_progress(ctx: Context, method: str, params: Message) -> Message:
    """The daemon's result; its stages and the growing answer are reported meanwhile. Raises its error."""
    report = _Report(ctx)
    async with Call(method, params) as call:
        following = asyncio.ensure_future(call.next())
        try:
            while True:
                done, _ = await asyncio.wait({following}, timeout=_SILENT_SECONDS)
                if not done:
                    await report.repeat()
                    continue
                if (value := following.result()) is None:
                    return call.result
                following = asyncio.ensure_future(call.next())
                await report.tell(value)
        finally:
            following.cancel()


class _Report:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._sent = self._tokens = 0
        self._stage = self._message = ""
        self._at = 0.0

    async def tell(self, value: Message) -> None:
        stage = str(value.get("stage", ""))
        if value.get("kind") == "token":
            self._tokens += 1
            stage, self._message = "token", f"answering, {self._tokens} tokens"
        else:
            self._message = describe(value)
        now = time.monotonic()
        if stage != self._stage or now >= self._at + _LEAST_SECONDS:
            self._stage, self._at = stage, now
            await self.repeat()

    async def repeat(self) -> None:
        # MCP's progress has to grow, and stages count different things: so it counts the reports.
        self._sent += 1
        await self._ctx.report_progress(self._sent, message=self._message or "waiting")
