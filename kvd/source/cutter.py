"""Files to chunks in child processes.

Grammars are native code: deeply nested Markdown alone makes one of them write past its buffer. A child that dies
or hangs costs its file the syntax (it is cut by lines) and nothing else. Several parse at the same time, and this
process is free to answer meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from types import TracebackType
from typing import Any, BinaryIO, Generic, TypeVar

from kvd.source.child import read_frame, write_frame
from kvd.source.content import Content, read_content

FILE_TIMEOUT_S = 20.0
MAX_STARTS = 30
"""After so many children in one run the rest is cut by lines: something is wrong with all of it."""
MOST_CHILDREN = 4
"""With more, writing the index is what takes the time."""

_CODE = str(Path(__file__).resolve().parents[2])
_AHEAD = 16
"""Files for each child."""
_AHEAD_BYTES = 4_000_000
_MUCH_BYTES = 100_000
"""Where a child has more before it, there is enough to do for another one."""
_STOP_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """A file to cut. `key` comes back with its content; `trusted`: not to be searched for secrets."""

    key: T
    path: str
    data: bytes
    trusted: bool = False

    def cut_here(self) -> Content:
        """Without a parser, and so without another process."""
        return read_content(self.path, self.data, by_lines=True, trusted=self.trusted)


class _Child:
    """One process; answers come in the order of what was sent."""

    def __init__(self) -> None:
        # -P: the working folder may be a repository with a json.py of its own.
        command = [sys.executable, "-P", "-m", "kvd.source.child"]
        code = [_CODE, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(code)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.waiting_bytes = 0
        """Of the files that it was sent and has not answered."""
        self._answers: SimpleQueue[bytes | None] = SimpleQueue()
        self._outbox: SimpleQueue[Item[Any] | None] = SimpleQueue()
        # Pipes hold little: with a thread at each end neither side waits for the other to read first.
        self._threads = [
            Thread(target=_write_all, args=(self.process.stdin, self._outbox), daemon=True),
            Thread(target=_read_all, args=(self.process.stdout, self._answers), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def send(self, item: Item[Any]) -> None:
        self.waiting_bytes += len(item.data)
        self._outbox.put(item)

    def receive(self, item: Item[Any]) -> bytes | None:
        """The answer to the oldest item that was sent; None if it died or takes too long."""
        self.waiting_bytes -= len(item.data)
        with suppress(Empty):
            return self._answers.get(timeout=FILE_TIMEOUT_S)
        return None

    def stop(self) -> None:
        self._outbox.put(None)
        self.process.kill()
        self.process.wait(_STOP_S)
        for thread in self._threads:
            thread.join(_STOP_S)


class Cutter:
    """Cuts files in up to `most` children, which are started when needed and stay until `close`.

    Use as a context manager, in one thread at a time.
    """

    def __init__(self, most: int = 0) -> None:
        self._most = most or min(usable_cores(), MOST_CHILDREN)
        self._children: list[_Child] = []
        self._starts = 0

    def __enter__(self) -> Cutter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [child.process.pid for child in self._children]

    def prepare(self) -> None:
        """Have a child that gets ready while the caller does something else."""
        self._drop_dead()
        if not self._children:
            self._start()

    def cut(self, items: Iterable[Item[T]]) -> Iterator[tuple[Item[T], Content]]:
        """The contents in the order of the items, of which a few are taken ahead."""
        waiting: deque[tuple[Item[T], _Child | None]] = deque()
        self._drop_dead()
        self._starts = len(self._children)
        size = 0
        try:
            for item in items:
                waiting.append((item, self._send(item)))
                size += len(item.data)
                while len(waiting) >= _AHEAD * self._most or size > _AHEAD_BYTES:
                    size -= len(waiting[0][0].data)
                    yield self._next(waiting)
            while waiting:
                yield self._next(waiting)
        finally:
            if waiting:
                # Answers that nobody takes would be taken for those of the next run.
                self.close()

    def _next(self, waiting: deque[tuple[Item[T], _Child | None]]) -> tuple[Item[T], Content]:
        item, child = waiting.popleft()
        if child is None:
            return item, item.cut_here()
        answer = child.receive(item)
        if answer is not None:
            return item, Content.from_json(json.loads(answer))
        # The oldest request is the one that the child was at.
        self._children.remove(child)
        child.stop()
        for place, (other, its) in enumerate(waiting):
            if its is child:
                waiting[place] = other, self._send(other)
        return item, item.cut_here()

    def _send(self, item: Item[Any]) -> _Child | None:
        """Give it to the child that has the least to do, or to a new one where all have much."""
        child = min(self._children, key=lambda child: child.waiting_bytes, default=None)
        if child is None or (child.waiting_bytes > _MUCH_BYTES and len(self._children) < self._most):
            child = self._start() or child
        if child is not None:
            child.send(item)
        return child

    def _drop_dead(self) -> None:
        """What died with nothing to do is no fault of the file that would be next."""
        for child in [child for child in self._children if child.process.poll() is not None]:
            self._children.remove(child)
            child.stop()

    def _start(self) -> _Child | None:
        if self._starts >= MAX_STARTS:
            return None
        self._starts += 1
        try:
            child = _Child()
        except OSError:
            return None
        self._children.append(child)
        return child

    def close(self, keep: int = 0) -> None:
        """End all children but the first `keep`; others are started when they are needed."""
        for child in self._children[keep:]:
            child.stop()
        del self._children[keep:]


class WarmCutters:
    """Lends cutters whose first child stays, so that one changed file does not pay for a start. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._idle: list[Cutter] = []
        self._used = 0.0

    @contextmanager
    def lend(self) -> Iterator[Cutter]:
        with self._lock:
            cutter = self._idle.pop() if self._idle else Cutter()
        try:
            yield cutter
        finally:
            with self._lock:
                self._used = time.monotonic()
                # One is enough to keep: runs are mostly about one repository.
                cutter.close(keep=0 if self._idle else 1)
                self._idle = self._idle or [cutter]

    def close_if_idle(self, seconds: float = 0.0) -> None:
        """End what is not lent, if nothing was for so long."""
        with self._lock:
            if time.monotonic() - self._used >= seconds:
                for cutter in self._idle:
                    cutter.close()
                self._idle.clear()


def usable_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _write_all(file: BinaryIO, outbox: SimpleQueue[Item[Any] | None]) -> None:
    with suppress(OSError, ValueError), file:
        while (item := outbox.get()) is not None:
            write_frame(file, json.dumps({"path": item.path, "trusted": item.trusted}).encode())
            write_frame(file, item.data)
            file.flush()


def _read_all(file: BinaryIO, answers: SimpleQueue[bytes | None]) -> None:
    with suppress(OSError, ValueError), file:
        while (answer := read_frame(file)) is not None:
            answers.put(answer)
    answers.put(None)
