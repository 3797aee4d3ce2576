"""`kvd bench pressure`: a daemon whose hot pool has room for a quarter of the code that is asked about.

Is every question answered, is anything computed again that was stored, and does memory stay what was configured?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from kvd import paths
from kvd.bench import footprint
from kvd.bench.about import about
from kvd.bench.footprint import Resident
from kvd.bench.libraries import RepositoryLibrary, by_vocabulary, commit_subjects, definitions
from kvd.bench.speed import stop_daemon
from kvd.bench.traces import Say
from kvd.config import Settings
from kvd.errors import CancelledError, KvdError, ModelError, RepositoryError, UsageError
from kvd.kv.pool import pool_bytes_for
from kvd.models.active import ActiveModel
from kvd.recall.rank import search
from kvd.rpc.client import Client
from kvd.service.indexer import update_index
from kvd.source.tree import find_root
from kvd.types import KVShape
from kvd.worker.reuse import usual_prompt

MAX_TOKENS = 4
"""Of an answer: what is measured comes before it."""
POOL_PART = 4
"""The pool has room for one in so many tokens of what is asked about."""
SOURCES = ("resident", "reused_hot", "reused_cold", "recomputed", "prefilled")

_CONTEXT_STEP = 256
_COMMITS = 2000
_SAY_EVERY = 20


@dataclass(slots=True)
class Tally:
    """What answers said of their tokens.

    `seen` has the length of each body that was in a prompt. `again` counts the tokens that were computed for bodies
    which an earlier answer, or the same one, had computed: they should have been in the store.
    """

    recompute: int
    answered: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    seen: dict[str, int] = field(default_factory=dict)
    again: int = 0

    def count(self, tokens: dict[str, int], bodies: Sequence[tuple[str, int]]) -> None:
        """Add an answer: its tokens by source, and name and length of each body in its prompt."""
        self.answered += 1
        self.tokens.update({source: tokens[source] for source in SOURCES})
        new = {name: size for name, size in bodies if name not in self.seen}
        # The first tokens of a body are computed in place too, and counted as that.
        first_time = sum(max(0, size - self.recompute) for size in new.values())
        self.again += max(0, tokens["prefilled"] - first_time)
        self.seen |= new

    def to_json(self) -> dict[str, Any]:
        return {
            "answered": self.answered,
            "failed": sum(self.failures.values()),
            "failures": dict(self.failures),
            "tokens": {"recalled": sum(self.tokens.values()), **self.tokens},
            "distinct_tokens": sum(self.seen.values()),
            "prefilled_again": self.again,
        }


def drawn(library: RepositoryLibrary, tokens: int, count: int, seed: int) -> tuple[list[int], int]:
    """So many questions of a library that recall at least `tokens` distinct tokens, and how many they do recall.

    Questions are drawn at random until they recall enough, and the rest from those again, all in a random order.
    Raises `UsageError` where they do not suffice.
    """
    random, chosen, seen = Random(seed), list[int](), dict[str, int]()
    for number in random.sample(range(len(library.questions)), len(library.questions)):
        if len(chosen) == count or sum(seen.values()) >= tokens:
            break
        new = {chunk.id: chunk.tokens for chunk in library.recall(number) if chunk.id not in seen}
        if new:
            chosen.append(number)
            seen |= new
    distinct = sum(seen.values())
    if distinct < tokens:
        raise UsageError(
            f"{len(chosen)} questions about {library.name} recall {distinct:,} tokens of code, not {tokens:,}",
            hint="give fewer --tokens, more --questions or a larger repository",
        )
    chosen += random.choices(chosen, k=count - len(chosen))
    random.shuffle(chosen)
    return chosen, distinct


def fitting_context(shape: KVShape, pool_tokens: int, most: int) -> int:
    """The largest context, of at most `most` cells, for which a pool of so many tokens is not too small."""
    for n_ctx in range(most, 1023, -_CONTEXT_STEP):
        try:
            pool_bytes_for(shape, n_ctx, pool_tokens * shape.bytes_per_token)
        except UsageError:
            continue
        return n_ctx
    raise UsageError(
        f"a pool of {pool_tokens:,} tokens is too small for any context", hint="give more --tokens (from 10,000)"
    )


class Run:
    """One benchmark of one model. The caller has given this process and its daemon a folder of their own."""

    def __init__(self, model: ActiveModel, options: dict[str, Any], say: Say) -> None:
        """Raises `RepositoryError` for no repository, `UsageError` for one without code."""
        self._model, self._options, self._say = model, options, say
        self._root = find_root(Path(options["repo"]))
        self._settings = Settings(max_tokens=MAX_TOKENS)
        stop_daemon()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{paths.store_file()}{suffix}").unlink(missing_ok=True)
        say(f"indexing {self._root.name}")
        update_index(self._root, self._settings, lambda progress: None, lambda: False)
        self._questions = [*_history(self._root), *definitions(self._root)]

    def close(self) -> None:
        stop_daemon()

    def measure(self) -> dict[str, Any]:
        """Everything as one JSON object. Raises `UsageError` where there is too little code for the pool."""
        # Whether there is enough code is said before anything takes long.
        self._draw()
        self._say("loading the model, which is checked if it is new here")
        engine = self._load()["engine"]
        shape = KVShape(1, engine["kv_bytes_per_token"] // 4)
        n_ctx = fitting_context(shape, self._options["tokens"] // POOL_PART, engine["n_ctx"])
        self._settings = replace(self._settings, n_ctx=n_ctx, budget=min(self._settings.budget, usual_prompt(n_ctx)))
        library, chosen, wanted = self._draw()
        self._settings = replace(self._settings, pool_bytes=wanted // POOL_PART * shape.bytes_per_token)
        stop_daemon()
        before = self._load()
        tally, started = Tally(before["engine"]["recompute"]), perf_counter()
        for count, number in enumerate(chosen):
            if count % _SAY_EVERY == 0:
                self._say(f"question {count + 1}/{len(chosen)}")
            self._ask(library, number, tally)
        seconds = perf_counter() - started
        with Client.connect() as client:
            # The store's writer has done all that came before it does this.
            client.call("gc", {})
            after = client.call("status", {})
        return {
            "about": self._about(),
            "settings": {
                "n_ctx": n_ctx,
                "budget": self._settings.budget,
                "recompute": tally.recompute,
                "pool_bytes": self._settings.pool_bytes,
                "pool_tokens": self._settings.pool_bytes // shape.bytes_per_token,
            },
            "questions": len(set(chosen)),
            "asked": len(chosen),
            "seconds": seconds,
            **tally.to_json(),
            "blocks": _blocks(after),
            "memory": memory(self._model, before, after),
        }

    def _draw(self) -> tuple[RepositoryLibrary, list[int], int]:
        library = RepositoryLibrary(self._root, self._questions, self._settings, by_vocabulary(self._model))
        return library, *drawn(library, self._options["tokens"], self._options["asks"], self._options["seed"])

    def _load(self) -> dict[str, Any]:
        """Have a daemon with the settings load the model; its status then, and the memory of both processes."""
        file = paths.config_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        names = ("n_ctx", "budget", "max_tokens", "pool_bytes")
        file.write_text("".join(f"{name} = {getattr(self._settings, name)}\n" for name in names))
        question = next((text for text in self._questions if search(self._root, text, 1)), None)
        if question is None:
            raise UsageError(f"there is no code to ask about in {self._root}", hint="give a repository with code")
        with Client.connect() as client:
            # Without reuse, neither pool nor store hold anything afterwards.
            client.call("ask", {"question": question, "repo": str(self._root), "max_tokens": 1, "reuse": False})
            status = client.call("status", {})
        engine = status["engine"]
        if engine.get("reuse") != "on":
            raise ModelError(
                f"the KV of {self._model.name} is not reused: {engine.get('reuse_reason')}", hint="kvd setup --model"
            )
        return {**status, "resident": resident(status)}

    def _ask(self, library: RepositoryLibrary, number: int, tally: Tally) -> None:
        try:
            with Client.connect() as client:
                answer = client.call("ask", {"question": library.questions[number], "repo": str(self._root)})
        except CancelledError:
            raise
        except KvdError as error:
            tally.failures[error.code] += 1
            self._say(f"a question failed: {error.message}")
            return
        places = library.places(number)
        found = [places[item["path"], item["start_line"], item["end_line"]] for item in answer["sources"]]
        tally.count(answer["tokens"], [(chunk.id, chunk.tokens) for chunk in found])

    def _about(self) -> dict[str, Any]:
        return {
            **about(self._options["command"]),
            "model": self._model.name,
            "repository": self._root.name,
            "seed": self._options["seed"],
        }


def memory(model: ActiveModel, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any] | None:
    """Of daemon and engine, against what is configured: `before` is the status right after loading, with what
    `resident` gave then, and `after` that in the end.

    None where the system does not tell, or where one of the processes is not that of the beginning.
    """
    loaded, end = before["resident"], resident(after)
    if set(loaded) != {"engine", "daemon"} or set(end) != set(loaded) or pids(before) != pids(after):
        return None
    engine = after["engine"]
    bytes_per_token = engine["kv_bytes_per_token"]
    wanted = footprint.configured(
        model.path.stat().st_size,
        engine["n_ctx"] * bytes_per_token,
        engine["pool"]["bytes"],
        usual_prompt(engine["n_ctx"]) * bytes_per_token,
        loaded["engine"],
    )
    expected = {"engine": wanted.total, "daemon": loaded["daemon"].now}
    compared = {name: footprint.compared(loaded[name], end[name], expected[name]) for name in expected}
    return {**compared, "engine": {**wanted.to_json(), **compared["engine"]}}


def _history(root: Path) -> list[str]:
    """Subjects of commits; none where git has no history."""
    try:
        return commit_subjects(root, _COMMITS)
    except RepositoryError:
        return []


def pids(status: dict[str, Any]) -> tuple[int | None, int]:
    """Of engine, None where there is none, and daemon."""
    return status["engine"].get("pid"), status["daemon"]["pid"]


def resident(status: dict[str, Any]) -> dict[str, Resident]:
    """Of engine and daemon, as far as it is known."""
    named = dict(zip(("engine", "daemon"), pids(status), strict=True))
    found = {name: footprint.resident(pid) for name, pid in named.items() if pid}
    return {name: taken for name, taken in found.items() if taken is not None}


def _blocks(status: dict[str, Any]) -> dict[str, Any]:
    """What became of blocks since the daemon's start. `stored` is how many there are; what was written more often than
    that was computed more than once."""

    def samples(name: str) -> dict[tuple[str, ...], int]:
        return {tuple(item["labels"].values()): item["value"] for item in status["metrics"][f"kvd_{name}_total"]}

    lookups, store = samples("block_requests"), status["store"]
    hits, misses = lookups["hot", "hit"], lookups["hot", "miss"]
    return {
        "cell_hits": lookups["cells", "hit"],
        "hot_hits": hits,
        "hot_misses": misses,
        "hot_hit_rate": hits / max(1, hits + misses),
        "declined": lookups["cold", "declined"],
        "evictions": samples("evictions")["hot", "capacity"],
        "written": store["written_blocks"],
        "stored": store["blocks"],
        "lost": store["lost_blocks"],
        "damaged": store["dropped_damaged"],
        "evicted_cold": store["evicted_cap"] + store["evicted_foreign"],
    }
