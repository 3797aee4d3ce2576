"""`kvd bench day`: a working day in minutes. Editors, hooks and people at one daemon, edits, branches, and kills.

The repository is a clone of the one given. What is asked between two changes is asked by several at once. After each
change the index is asked for what was added and for what was taken away: an answer from before the change is stale.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import numpy as np

from kvd.bench import footprint
from kvd.bench.about import about
from kvd.bench.libraries import definitions
from kvd.bench.speed import stop_daemon
from kvd.bench.statistics import median
from kvd.config import Settings
from kvd.errors import KvdError, RepositoryError
from kvd.rpc.client import Client
from kvd.service.indexer import update_index

Say = Callable[[str], None]

AT_ONCE = 6
"""Requests that are made at the same time."""
_MAX_TOKENS = 24
_SHARES = {"search": 60, "status": 8, "prefetch": 10, "index": 4, "metrics": 3}
"""How often the others are made, beside questions to the model."""
_KILLED = 0.5
"""Part of the day in which processes are killed; in the rest their memory is watched."""
_NEVER_SAID = "quaggafish"


@dataclass(slots=True)
class Diary:
    """What happened: requests by method and outcome with their seconds, changes, and what was wrong."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    changes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[int, int, int]] = field(default_factory=list)
    """Requests so far, and bytes of daemon and engine, while nobody was killed."""

    def note(self, method: str, outcome: str, seconds: float) -> None:
        self.outcomes[method, outcome] += 1
        self.seconds.setdefault(method, []).append(seconds)


class Run:
    """One day in a clone of `repo` at `folder`."""

    def __init__(self, repo: Path, folder: Path, requests: int, asks: int, seed: int, say: Say) -> None:
        self._root, self._requests, self._asks, self._say = folder / "clone", requests, asks, say
        self._random, self._diary = Random(seed), Diary()
        self._added: dict[str, Path] = {}
        """Names of functions that were added to files, while they are there."""
        self._made = 0
        stop_daemon()
        shutil.rmtree(self._root, ignore_errors=True)
        self._git("clone", "--quiet", "--no-hardlinks", str(repo), str(self._root), at=folder)
        self._branches = self._two_branches()
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
                answers = [threads.submit(self._request, method) for method in part]
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
        return self._result(command, perf_counter() - started)

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

    def _request(self, method: str) -> None:
        query, started = self._random.choice(self._queries), perf_counter()
        try:
            with Client.connect() as client:
                result = client.call(method, self._params(method, query), lambda value: None, timeout=600.0)
            outcome = "ok"
            self._look_at_sources(result.get("sources", []))
        except KvdError as error:
            outcome = error.code
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
        if what == "edit":
            self._edit()
        elif what == "undo" and self._added:
            self._undo()
        elif what == "branch":
            self._switch()

    def _edit(self) -> None:
        """Add a function to a file of the repository; it must be found, at its line."""
        file = self._random.choice(self._sources())
        self._made += 1
        name = f"{_NEVER_SAID}_{self._made:04d}"
        with file.open("a") as text:
            text.write(f"\n\ndef {name}(value):\n    return value + {self._made}\n")
        self._added[name] = file
        self._diary.changes["edit"] += 1
        self._expect(name, file)

    def _undo(self) -> None:
        """Take the files' additions back; none of them may be found any more."""
        name = self._random.choice(list(self._added))
        file = self._added[name]
        self._git("checkout", "--quiet", "--", str(file.relative_to(self._root)))
        gone = [other for other, place in self._added.items() if place == file]
        for other in gone:
            del self._added[other]
        self._diary.changes["undo"] += 1
        for other in gone:
            self._expect(other, None)

    def _switch(self) -> None:
        """To the other branch, whatever was edited."""
        self._git("checkout", "--quiet", "--force", self._branches[0])
        self._branches.reverse()
        gone = list(self._added)
        self._added.clear()
        self._diary.changes["branch"] += 1
        for name in gone[-3:]:
            self._expect(name, None)

    def _expect(self, name: str, file: Path | None) -> None:
        """A search for the name finds its line in `file`, or nothing that says it."""
        try:
            with Client.connect() as client:
                sources = client.call("search", {"query": name, "repo": str(self._root)}, timeout=600.0)["sources"]
        except KvdError as error:
            self._diary.note("search", error.code, 0.0)
            return
        places = [(self._root / source["path"], source["start_line"], source["end_line"]) for source in sources]
        saying = [place for place in places if name in _text(*place)]
        if file is None and saying:
            self._wrong(f"{name} is found and was taken away")
        if file is not None and not any(place[0] == file for place in saying[:1]):
            self._wrong(f"{name} is not found where it was added")
        self._diary.changes["checked"] += 1

    def _sources(self) -> list[Path]:
        listed = self._git("ls-files", "-z").split("\0")
        return [self._root / name for name in sorted(listed) if name.endswith(".py")]

    def _two_branches(self) -> list[str]:
        """Today's commit and one from before, by name."""
        commits = self._git("rev-list", "--first-parent", "--max-count=60", "HEAD").split()
        if len(commits) < 2 or not self._sources():
            raise RepositoryError("a day needs a repository with a history and Python files", hint="give --repo one")
        self._git("branch", "--force", "today", commits[0])
        self._git("branch", "--force", "before", commits[-1])
        self._git("checkout", "--quiet", "--detach", "today")
        return ["before", "today"]

    def _git(self, *arguments: str, at: Path | None = None) -> str:
        command = ("git", "-C", str(at or self._root), *arguments)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RepositoryError(f"git {arguments[0]}: {done.stderr.strip()}", hint="give --repo a clone")
        return done.stdout

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
            kept = client.call("index", params, lambda value: None, timeout=600.0)
        self._git("worktree", "add", "--quiet", "--detach", str(self._root.with_name("fresh")), "HEAD")
        fresh_root = self._root.with_name("fresh")
        try:
            for file in {*self._added.values()}:
                shutil.copy(file, fresh_root / file.relative_to(self._root))
            with Client.connect() as client:
                fresh = client.call("index", {"path": str(fresh_root)}, lambda value: None, timeout=600.0)
        finally:
            self._git("worktree", "remove", "--force", str(fresh_root))
        for name in ("files", "chunks"):
            if kept[name] != fresh[name]:
                self._wrong(f"the index has {kept[name]} {name}, one made anew {fresh[name]}")

    def _result(self, command: str, seconds: float) -> dict[str, Any]:
        diary = self._diary
        methods = sorted(diary.seconds)
        return {
            "about": about(command),
            "seconds": seconds,
            "requests": [
                {
                    "method": method,
                    "outcomes": {end: count for (name, end), count in diary.outcomes.items() if name == method},
                    "median_ms": median(diary.seconds[method]).value * 1000,
                    "p95_ms": float(np.quantile(diary.seconds[method], 0.95)) * 1000,
                }
                for method in methods
            ],
            "changes": dict(diary.changes),
            "wrong": diary.wrong,
            "memory": {
                name: slope([(done, sizes[place]) for done, *sizes in diary.memory])
                for place, name in enumerate(("daemon", "engine"))
            },
        }


def _text(file: Path, start: int, end: int) -> str:
    try:
        return "\n".join(file.read_text("utf-8", "replace").splitlines()[start - 1 : end])
    except OSError:
        return ""


def slope(points: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Bytes that grow with each request by least squares over the second half, its standard error, and the last bytes.

    The first half is left out: caches fill.
    """
    later = points[len(points) // 2 :]
    if len(later) < 3:
        return {}
    x, y = (np.array(values, np.float64) for values in zip(*later, strict=True))
    x -= x.mean()
    growth = float((x * y).sum() / (x * x).sum())
    rest = y - y.mean() - growth * x
    error = float(np.sqrt((rest * rest).sum() / (len(x) - 2) / (x * x).sum()))
    return {"bytes_a_request": growth, "error": error, "bytes": float(y[-1]), "points": len(later)}


def lines(result: dict[str, Any]) -> Iterator[str]:
    """What happened, as a table and a few lines."""
    head = result["about"]
    yield f"kvd {head['kvd']}, {head['machine']}, {head['date']}: {result['seconds'] / 60:.1f} minutes"
    yield ""
    yield "| | requests | ok | median | 95 % within | otherwise |"
    yield "|---|---|---|---|---|---|"
    for row in result["requests"]:
        outcomes = dict(row["outcomes"])
        count, good = sum(outcomes.values()), outcomes.pop("ok", 0)
        others = ", ".join(f"{number} {name}" for name, number in sorted(outcomes.items()))
        yield f"| {row['method']} | {count} | {good} | {row['median_ms']:.0f} ms | {row['p95_ms']:.0f} ms | {others} |"
    yield ""
    yield ", ".join(f"{count} {name}" for name, count in sorted(result["changes"].items()))
    yield f"wrong: {len(result['wrong'])}"
    yield from result["wrong"]
    for name, memory in result["memory"].items():
        if memory:
            growth, error = memory["bytes_a_request"] / 1000, 1.96 * memory["error"] / 1000
            yield f"{name}: {memory['bytes'] / 1e6:.0f} MB, {growth:+.1f} kB a request (+-{error:.1f})"
