"""`kvd bench day`: a working day in minutes. Editors, hooks and people at one daemon, edits, branches, and kills.

The repository is a clone of the one given. What is asked between two changes is asked by several at once. After each
change the index is asked for what was added and for what was taken away: an answer from before the change is stale.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from kvd import paths
from kvd.bench import footprint
from kvd.bench.clone import Clone
from kvd.bench.diary import Diary
from kvd.bench.libraries import definitions
from kvd.bench.speed import stop_daemon
from kvd.config import Settings
from kvd.errors import KvdError, UnavailableError
from kvd.rpc.client import Client
from kvd.service.indexer import update_index

Say = Callable[[str], None]

AT_ONCE = 6
"""Requests that are made at the same time."""
_MAX_TOKENS = 24
_SHARES = {"search": 60, "status": 8, "prefetch": 10, "index": 4, "metrics": 3}
"""How often the others are made, beside questions to the model."""
_WITH_PROGRESS = ("ask", "search", "index")
_KILLED = 0.5
"""Part of the day in which processes are killed; in the rest their memory is watched."""
_POOL_BYTES = 500_000_000
"""Full before memory is watched: until then the engine's grows with each chunk."""
_MOST_CHECKED = 3
"""Names that were taken away, of those that one change took."""


class Run:
    """One day in a clone of `repo` at `folder`."""

    def __init__(self, repo: Path, folder: Path, requests: int, asks: int, seed: int, say: Say) -> None:
        self._requests, self._asks, self._say = requests, asks, say
        self._random, self._diary = Random(seed), Diary()
        stop_daemon()
        paths.config_file().parent.mkdir(parents=True, exist_ok=True)
        paths.config_file().write_text(f"pool_bytes = {_POOL_BYTES}\n")
        self._clone = Clone(repo, folder / "clone", self._random)
        self._root = self._clone.root
        # A program of its own asks for names that are in the repository.
        update_index(self._root, Settings(), lambda progress: None, lambda: False)
        self._queries = [*definitions(self._root), "where are errors handled", "how is configuration read"]

    def close(self) -> None:
        stop_daemon()

    def measure(self, command: str) -> dict[str, Any]:
        started, done, kills = perf_counter(), 0, self._kills()
        plan = self._plan()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            while done < len(plan):
                part = plan[done : done + self._random.randint(1, 2 * AT_ONCE)]
                answers = [threads.submit(self._request, method, bool(kills)) for method in part]
                if kills and done >= kills[0][0]:
                    self._kill(kills.pop(0)[1])
                for answer in answers:
                    answer.result()
                done += len(part)
                self._change()
                if done > self._requests * _KILLED:
                    self._remember(done)
                if done // 100 != (done - len(part)) // 100:
                    self._say(f"{done} of {len(plan)} requests, {len(self._diary.wrong)} wrong")
        self._whole_index()
        return self._diary.result(command, perf_counter() - started)

    def _plan(self) -> list[str]:
        others = self._random.choices(list(_SHARES), list(_SHARES.values()), k=self._requests - self._asks)
        plan = ["ask"] * self._asks + others
        self._random.shuffle(plan)
        return plan

    def _kills(self) -> list[tuple[int, str]]:
        """After how many requests who is killed, in the first part of the day."""
        last = int(self._requests * _KILLED)
        whom = [*["engine"] * 5, *["daemon"] * 4]
        return sorted(zip(self._random.sample(range(1, max(last, len(whom) + 1)), len(whom)), whom, strict=True))

    # Requests

    def _request(self, method: str, killing: bool) -> None:
        """Make one request. Nothing may fail, but for want of a process that was killed while that is done."""
        query, started = self._random.choice(self._queries), perf_counter()
        try:
            with Client.connect() as client:
                progress = _ignore if method in _WITH_PROGRESS else None
                result = client.call(method, self._params(method, query), progress, timeout=600.0)
            outcome = "ok"
            self._look_at_sources(result.get("sources", []))
        except KvdError as error:
            outcome = error.code
            if not (killing and isinstance(error, UnavailableError)):
                self._wrong(f"{method}: {error.message}")
        self._diary.note(method, outcome, perf_counter() - started)

    def _params(self, method: str, query: str) -> dict[str, Any]:
        repo = str(self._root)
        params: dict[str, dict[str, Any]] = {
            "ask": {"question": query, "repo": repo, "max_tokens": _MAX_TOKENS, "budget": 512},
            "search": {"query": query, "repo": repo},
            "prefetch": {"question": query, "repo": repo},
            "index": {"path": repo, "background": True},
        }
        return params.get(method, {})

    def _look_at_sources(self, sources: Sequence[dict[str, Any]]) -> None:
        """Nothing is changed while a request is under way: each place must be there."""
        for source in sources:
            try:
                lines = (self._root / source["path"]).read_text("utf-8", "replace").splitlines()
            except OSError:
                self._wrong(f"{source['path']} is a source and no file")
                continue
            if not 1 <= source["start_line"] <= source["end_line"] <= max(1, len(lines)):
                self._wrong(f"{source['path']}:{source['start_line']}-{source['end_line']} of {len(lines)} lines")

    def _wrong(self, text: str) -> None:
        self._diary.wrong.append(text)
        self._say(f"wrong: {text}")

    # Changes

    def _change(self) -> None:
        what = self._random.choices(("nothing", "edit", "undo", "branch"), (50, 30, 15, 5))[0]
        if what == "nothing" or (what == "undo" and not self._clone.added):
            return
        self._diary.changes[what] += 1
        if what == "edit":
            self._expect(*self._clone.edit())
        else:
            gone = self._clone.undo() if what == "undo" else self._clone.switch()
            for name in gone[-_MOST_CHECKED:]:
                self._expect(name, None)

    def _expect(self, name: str, file: Path | None) -> None:
        """A search for the name finds its line in `file`, or nothing that says it."""
        try:
            with Client.connect() as client:
                sources = client.call("search", {"query": name, "repo": str(self._root)}, timeout=600.0)["sources"]
        except KvdError as error:
            self._wrong(f"search: {error.message}")
            return
        places = [(self._root / source["path"], source["start_line"], source["end_line"]) for source in sources]
        saying = [place for place in places if name in _text(*place)]
        if file is None and saying:
            self._wrong(f"{name} is found and was taken away")
        if file is not None and not any(place[0] == file for place in saying[:1]):
            self._wrong(f"{name} is not found where it was added")
        self._diary.changes["checked"] += 1

    # Deaths

    def _kill(self, whom: str) -> None:
        with suppress(KvdError, ProcessLookupError):
            pids = self._pids()
            if pids.get(whom):
                os.kill(pids[whom], signal.SIGKILL)
                self._diary.changes[f"{whom} killed"] += 1

    def _pids(self) -> dict[str, int]:
        client = Client.running()
        if client is None:
            return {}
        with client:
            status = client.call("status", {}, timeout=60.0)
        return {"daemon": status["daemon"]["pid"], "engine": status["engine"].get("pid") or 0}

    def _remember(self, done: int) -> None:
        with suppress(KvdError):
            found = {name: footprint.resident(pid) for name, pid in self._pids().items() if pid}
            daemon, engine = found.get("daemon"), found.get("engine")
            if daemon is not None and engine is not None:
                self._diary.memory.append((done, daemon.now, engine.now))

    def _whole_index(self) -> None:
        """In the end the index has each file once, as an index made anew has."""
        params = {"path": str(self._root)}
        with Client.connect() as client:
            kept = client.call("index", params, _ignore, timeout=600.0)
        with self._clone.copy() as copy, Client.connect() as client:
            fresh = client.call("index", {"path": str(copy)}, _ignore, timeout=600.0)
        for name in ("files", "chunks"):
            if kept[name] != fresh[name]:
                self._wrong(f"the index has {kept[name]} {name}, one made anew {fresh[name]}")


def _text(file: Path, start: int, end: int) -> str:
    try:
        return "\n".join(file.read_text("utf-8", "replace").splitlines()[start - 1 : end])
    except OSError:
        return ""


def _ignore(value: dict[str, Any]) -> None:
    """Take progress and make nothing of it."""
