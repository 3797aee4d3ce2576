"""Many conversations at a time, their turns in a random order, while daemon and engine end in between.

Every question must be answered, nothing that was said may be lost, and nothing of it computed again.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, Protocol

from kvd.bench.diary import slope
from kvd.bench.pressure import resident
from kvd.bench.pressure_report import memory_lines
from kvd.bench.statistics import median
from kvd.bench.talk import Asking, Reply, ask
from kvd.bench.text import counted
from kvd.errors import KvdError, UnavailableError
from kvd.rpc.client import Client

Say = Callable[[str], None]

AT_ONCE = 4
"""Questions that are asked at the same time."""
_TRIES = 4
_TOLD = 10
"""Of what is wrong or computed again, so much is told."""


class Processes(Protocol):
    """Daemon and engine. Once they have ended, the next client finds a daemon or starts one."""

    def stop_daemon(self) -> None:
        """As `kvd stop`."""

    def kill_daemon(self) -> None:
        """kill -9; its engine goes with it."""

    def kill_engine(self) -> None:
        """kill -9."""

    def loaded(self) -> dict[str, Any]:
        """The daemon's status once a model is loaded, with the memory of both as `resident`."""


@dataclass(slots=True)
class Record:
    """What was answered, by session, and what happened."""

    replies: dict[str, list[Reply]] = field(default_factory=dict)
    asked_again: int = 0
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[int, int, int]] = field(default_factory=list)
    """Questions so far, and bytes of daemon and engine, since the last death."""

    def computed_again(self) -> list[tuple[str, int, int]]:
        """Session, turn and tokens of earlier turns that were computed again for it, where there are any."""
        replies = sorted(itertools.chain.from_iterable(self.replies.values()), key=lambda reply: reply.turn)
        return [(reply.session, reply.turn, reply.again) for reply in replies if reply.again]

    def to_json(self) -> dict[str, Any]:
        replies = [reply for session in self.replies.values() for reply in session]
        again = self.computed_again()
        sources: Counter[str] = Counter()
        for reply in replies:
            sources.update(reply.conversation)
        return {
            "answered": len(replies),
            "asked_again": self.asked_again,
            "wrong": self.wrong,
            "history": {name: sources[name] for name in ("resident", "loaded", "computed")},
            "computed_again": {"turns": len(again), "tokens": sum(lost for *_, lost in again), "first": again[:_TOLD]},
            "longest": max((reply.conversation["tokens"] for reply in replies), default=0),
            "ttft_ms": [reply.ttft_ms for reply in replies],
            "growth": {
                name: slope([(done, sizes[place]) for done, *sizes in self.memory])
                for place, name in enumerate(("daemon", "engine"))
            },
        }


class Crowd:
    """`sessions` of `turns` each in the repository at `root`; what each says is one of `questions`, at random."""

    def __init__(
        self, root: Path, questions: Sequence[str], sessions: int, turns: int, how: Asking, seed: int, say: Say
    ) -> None:
        self._root, self._questions, self._how, self._say = root, questions, how, say
        self._random, self._lock = Random(seed), threading.Lock()
        self._names = [f"crowd-{number}" for number in range(1, sessions + 1)]
        self._turns = turns
        self._dying = False
        self.record = Record({name: [] for name in self._names})

    def run(self, processes: Processes) -> tuple[dict[str, Any], float]:
        """Ask everything; the status when the model was loaded for the last time, and the seconds that it took.

        In the first half the engine is killed while it answers, the daemon stopped twice and killed once.
        """
        plan = [name for name in self._names for _ in range(self._turns)]
        self._random.shuffle(plan)
        eighths = [max(part, len(plan) * part // 8) for part in range(1, 5)]
        ends = list(zip(eighths, ("engine killed", "daemon stopped", "daemon killed", "daemon stopped"), strict=True))
        started, done, status = perf_counter(), 0, dict[str, Any]()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            while done < len(plan):
                until = done + self._random.randint(AT_ONCE, 3 * AT_ONCE)
                part = plan[done : min(until, ends[0][0]) if ends else until]
                due = ends.pop(0)[1] if ends and done + len(part) == ends[0][0] else ""
                self._ask_all(threads, part, processes.kill_engine if due == "engine killed" else None)
                done += len(part)
                if due == "daemon stopped":
                    processes.stop_daemon()
                elif due == "daemon killed":
                    processes.kill_daemon()
                if due:
                    self._say(f"{done} of {len(plan)} turns: {due}")
                if due and not ends:
                    status = processes.loaded()
                elif not ends:
                    self._note_memory(done)
        return status, perf_counter() - started

    def _ask_all(self, threads: ThreadPoolExecutor, names: Iterable[str], kill: Callable[[], None] | None) -> None:
        self._dying = kill is not None
        asked = [threads.submit(self._ask, name, self._random.choice(self._questions)) for name in names]
        if kill is not None:
            # The others are being answered, or wait for that.
            asked[0].result()
            kill()
        for answer in asked:
            answer.result()

    def _ask(self, name: str, question: str) -> None:
        for _ in range(_TRIES):
            try:
                reply = ask(self._root, name, question, self._how)
            except KvdError as error:
                if not (self._dying and isinstance(error, UnavailableError)):
                    self._wrong(f"{name}: {error.message}")
                    return
                with self._lock:
                    self.record.asked_again += 1
                continue
            with self._lock:
                self.record.replies[name].append(reply)
            return
        self._wrong(f"{name}: no answer in {_TRIES} tries")

    def _wrong(self, text: str) -> None:
        with self._lock:
            self.record.wrong.append(text)
        self._say(f"wrong: {text}")

    def _note_memory(self, done: int) -> None:
        with Client.connect() as client:
            taken = resident(client.call("status", {}))
        if {"daemon", "engine"} <= taken.keys():
            self.record.memory.append((done, taken["daemon"].now, taken["engine"].now))

    def look(self) -> None:
        """Whether each session shows all that was said in it, and the list all sessions; what differs is wrong."""
        with Client.connect() as client:
            listed = client.call("session/list", {"repo": str(self._root)})["sessions"]
            turns = {item["name"]: item["turns"] for item in listed}
            for name, replies in self.record.replies.items():
                said = [(reply.turn, reply.question, reply.answer) for reply in replies]
                shown = client.call("session/show", {"repo": str(self._root), "name": name})["turns"]
                if sorted(said) != [(turn["number"], turn["question"], turn["answer"]) for turn in shown]:
                    self._wrong(f"{name} shows {len(shown)} turns, and {len(said)} were answered")
                if turns.get(name) != self._turns:
                    self._wrong(f"{name} has {turns.get(name)} of {self._turns} turns in the list")


def lines(result: dict[str, Any]) -> Iterator[str]:
    """What became of many sessions."""
    again, history, store = result["computed_again"], result["history"], result["store"]
    yield (
        f"{counted(result['sessions'], 'session')} of {counted(result['turns'], 'turn')} in "
        f"{result['seconds']:,.0f} s, up to {result['longest']:,} tokens each; "
        f"pool of {result['pool_tokens']:,} tokens, context of {result['n_ctx']:,}"
    )
    yield (
        f"answered {result['answered']:,} of {result['sessions'] * result['turns']:,}, first word after "
        f"{median(result['ttft_ms']).value / 1000:.2f} s (median); asked again {result['asked_again']}; "
        f"wrong {len(result['wrong'])}"
    )
    yield from result["wrong"]
    yield (
        f"tokens of earlier turns: {history['resident']:,} in the cells, {history['loaded']:,} loaded, "
        f"{again['tokens']:,} computed again in {counted(again['turns'], 'turn')}"
    )
    yield from (f"  {session}, turn {turn}: {tokens:,} tokens" for session, turn, tokens in again["first"])
    yield from memory_lines(result["memory"])
    for name, growth in result["growth"].items():
        if growth:
            error = 1.96 * growth["error"] / 1000
            yield f"{name}: {growth['bytes_a_request'] / 1000:+.1f} kB a turn (+-{error:.1f})"
    yield (
        f"disk: KV {store['file_bytes'] / 1e6:,.0f} MB of {store['cap_bytes'] / 1e6:,.0f}, {store['blocks']:,} blocks, "
        f"{store['lost_blocks']:,} lost; conversations {result['sessions_bytes'] / 1e6:,.1f} MB"
    )
