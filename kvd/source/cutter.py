"""Files to chunks in a child process.

Grammars are native code: deeply nested Markdown alone makes one of them write past its buffer. A child that dies
or hangs costs its file the syntax (it is cut by lines) and nothing else. It also leaves this process free to
answer while it parses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread, local
from types import TracebackType
from typing import Any, BinaryIO, Generic, TypeVar

from kvd.source.child import read_frame, write_frame
from kvd.source.content import Content, read_content

FILE_TIMEOUT_S = 20.0
MAX_STARTS = 30
"""After so many dead children the rest is cut by lines: something is wrong with all of it."""

_CODE = str(Path(__file__).resolve().parents[2])
_AHEAD = 24
_AHEAD_BYTES = 4_000_000
_STOP_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """A file to cut. `key` comes back with its content."""

    key: T
    path: str
    data: bytes


class Cutter:
    """Cuts files in a child that is started when first needed. Use as a context manager, in one thread."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._answers: SimpleQueue[bytes | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._starts = 0

    def __enter__(self) -> Cutter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def cut(self, items: Iterable[Item[T]]) -> Iterator[tuple[Item[T], Content]]:
        """The contents in the order of the items, of which a few are taken ahead."""
        waiting: deque[Item[T]] = deque()
        for item in items:
            waiting.append(item)
            self._send(item)
            while len(waiting) >= _AHEAD or sum(len(item.data) for item in waiting) > _AHEAD_BYTES:
                yield self._next(waiting)
        while waiting:
            yield self._next(waiting)

    def _next(self, waiting: deque[Item[T]]) -> tuple[Item[T], Content]:
        item = waiting.popleft()
        answer = None
        if self._child is not None:
            with suppress(Empty):
                answer = self._answers.get(timeout=FILE_TIMEOUT_S)
        if answer is not None:
            return item, Content.from_json(json.loads(answer))
        # The oldest request is the one that the child was at.
        self._stop()
        for other in waiting:
            self._send(other)
        return item, read_content(item.path, item.data, by_lines=True)

    def _send(self, item: Item[T]) -> None:
        if self._child is None and not self._start():
            return
        self._outbox.put(item)

    def _start(self) -> bool:
        if self._starts >= MAX_STARTS:
            return False
        self._starts += 1
        child = _take_prepared() or _new_child()
        if child is None:
            return False
        assert child.stdin is not None
        assert child.stdout is not None
        self._child = child
        self._answers = SimpleQueue()
        self._outbox: SimpleQueue[Item[Any] | None] = SimpleQueue()
        # Pipes hold little: with a thread at each end neither side waits for the other to read first.
        self._threads = [
            Thread(target=_write_all, args=(child.stdin, self._outbox), daemon=True),
            Thread(target=_read_all, args=(child.stdout, self._answers), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return True

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        self._outbox.put(None)
        child.kill()
        child.wait(_STOP_S)
        for thread in self._threads:
            thread.join(_STOP_S)


def _new_child() -> subprocess.Popen[bytes] | None:
    # -P: the working folder may be a repository with a json.py of its own.
    command = [sys.executable, "-P", "-m", "kvd.source.child"]
    code = [_CODE, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(code)}
    with suppress(OSError):
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
    return None


# Of each thread, as a child has the priority of the thread that it was started in.
_prepared = local()


def _take_prepared() -> subprocess.Popen[bytes] | None:
    child: subprocess.Popen[bytes] | None = getattr(_prepared, "child", None)
    _prepared.child = None
    return child


@contextmanager
def prepared() -> Iterator[None]:
    """Start the child for the next `Cutter` of this thread now: it gets ready while the caller does something else."""
    _prepared.child = _new_child()
    try:
        yield
    finally:
        unused = _take_prepared()
        if unused is not None:
            with unused:
                unused.kill()


def _write_all(file: BinaryIO, outbox: SimpleQueue[Item[Any] | None]) -> None:
    with suppress(OSError, ValueError), file:
        while (item := outbox.get()) is not None:
            write_frame(file, json.dumps({"path": item.path}).encode())
            write_frame(file, item.data)
            file.flush()


def _read_all(file: BinaryIO, answers: SimpleQueue[bytes | None]) -> None:
    with suppress(OSError, ValueError), file:
        while (answer := read_frame(file)) is not None:
            answers.put(answer)
    answers.put(None)
