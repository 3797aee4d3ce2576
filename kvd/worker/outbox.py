"""What the engine child tells the daemon: answers and events, from several threads, each frame whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from kvd.kv.pager import Damaged
from kvd.kv.store import StoredBlock
from kvd.types import Progress
from kvd.worker.bringing import Listener
from kvd.worker.decoding import Step
from kvd.worker.protocol import Message, encode_frame


class Outbox:
    """`counters` gives those of `kvd.worker.protocol.COUNTERS`; they go with the next frame when they have changed."""

    def __init__(self, answers: BinaryIO, counters: Callable[[], dict[str, int]]) -> None:
        self._answers, self._counters = answers, counters
        self._sending = threading.Lock()
        self._told: dict[str, int] = {}

    def send(self, message: Message, blob: bytes = b"") -> None:
        with self._sending:
            counters = self._counters()
            if counters != self._told:
                message, self._told = {**message, "counters": counters}, counters
            self._answers.write(encode_frame(message, blob))
            self._answers.flush()

    def event(self, event: str, data: Message, number: int | None = None, blob: bytes = b"") -> None:
        """An event, of the request `number` if it is one's."""
        message: Message = {"event": event, "data": data}
        if number is not None:
            message["id"] = number
        self.send(message, blob)

    def damaged(self, blocks: Sequence[Damaged]) -> None:
        for block in blocks:
            self.event("drop", {"keys": [block.key.hex()], "reason": block.reason})

    def listener(self, number: int, step: Step) -> Listener:
        """Tells what becomes of the request `number`."""

        def blocks(frames: list[StoredBlock]) -> None:
            self.event("blocks", {"blocks": _described(frames)}, blob=b"".join(frame.data for frame in frames))

        def progress(value: Progress) -> None:
            self.event("stage", value.to_json(), number)

        def token(text: str) -> None:
            self.event("token", {"text": text}, number)

        return Listener(progress, token, blocks, lambda block: self.damaged([block]), step)


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
