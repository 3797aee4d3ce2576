"""`kvd bench sessions`: conversations that wake, what their turns cost, many of them at a time, and a year of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvd import paths
from kvd.bench import crowd, remembered, turn_costs, wake
from kvd.bench.about import about
from kvd.bench.libraries import by_vocabulary
from kvd.bench.pressure import fitting_context, memory, pids
from kvd.bench.speed import STOP_SECONDS, stop_daemon
from kvd.bench.talk import Asking, askable, indexed, loaded, start_afresh, write_settings
from kvd.config import Settings
from kvd.models.active import ActiveModel
from kvd.rpc.client import Client
from kvd.types import KVShape

Say = Callable[[str], None]

_CROWD = Asking(64, 12)
"""Short turns: what is tried is how many there are."""
_QUESTIONS = 200
"""The most different ones."""
_POOL_TOKENS = 11_264
"""The least that a context of 8,192 cells may have."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much to measure; a part of which nothing is wanted is left out.

    `conversations` of `tokens` are woken `rounds` times; `turns` are those of a conversation whose cost is measured,
    if `cost`, and of each of so many `sessions` at a time; `remembered` tokens are those of a year.
    """

    conversations: int
    rounds: int
    tokens: int
    cost: bool
    sessions: int
    turns: int
    remembered: int
    seed: int


class Run:
    """One benchmark of one model. The caller has given this process and its daemon a folder of their own."""

    def __init__(self, model: ActiveModel, repo: str, folder: Path, say: Say, seed: int) -> None:
        """Raises `RepositoryError` for no repository."""
        self._model, self._say, self._last = model, say, folder / "last.json"
        stop_daemon()
        start_afresh()
        say("indexing")
        self._root, self._questions = indexed(repo, seed)
        self._count = by_vocabulary(model)

    def close(self) -> None:
        stop_daemon()

    def measure(self, wanted: Wanted, command: str) -> dict[str, Any]:
        """Everything as one JSON object. What is done is kept in `last.json` while the rest runs."""
        result: dict[str, Any] = {"about": {**about(command), "model": self._model.name, "repository": self._root.name}}
        parts: dict[str, tuple[bool, Callable[[Wanted], dict[str, Any]]]] = {
            "wake": (wanted.conversations > 0, self._wake),
            "cost": (wanted.cost, self._cost),
            "crowd": (wanted.sessions > 0, self._crowd),
            "remembered": (wanted.remembered > 0, self._remembered),
        }
        write_settings()
        for name, (is_wanted, part) in parts.items():
            if is_wanted:
                result[name] = part(wanted)
                self._last.write_text(json.dumps(result))
        return result

    def _wake(self, wanted: Wanted) -> dict[str, Any]:
        self._load()
        questions = self._askable(wake.budget(wanted.tokens))
        return wake.measure(self._root, questions, wanted.conversations, wanted.rounds, wanted.tokens, self._say)

    def _cost(self, wanted: Wanted) -> dict[str, Any]:
        self._load()
        return turn_costs.measure(self._root, self._askable(turn_costs.HOW.budget), wanted.turns, self._say)

    def _remembered(self, wanted: Wanted) -> dict[str, Any]:
        stop_daemon()
        start_afresh()
        more = wanted.remembered, wanted.turns, self._count, wanted.seed, self._say
        return remembered.measure(self._root, self._questions, *more)

    def _askable(self, budget: int, most: int = _QUESTIONS) -> list[str]:
        return askable(self._root, self._questions, budget, self._count, most)

    def _load(self) -> dict[str, Any]:
        self._say("loading the model, which is checked if it is new here")
        return loaded(self._root, self._askable(_CROWD.budget, 1)[0], _CROWD.budget)

    def _crowd(self, wanted: Wanted) -> dict[str, Any]:
        bytes_per_token = self._load()["engine"]["kv_bytes_per_token"]
        stop_daemon()
        start_afresh()
        n_ctx = fitting_context(KVShape(1, bytes_per_token // 4), _POOL_TOKENS, Settings().n_ctx)
        write_settings(n_ctx=n_ctx, pool_bytes=_POOL_TOKENS * bytes_per_token)
        questions = self._askable(_CROWD.budget)
        asking = crowd.Crowd(self._root, questions, wanted.sessions, wanted.turns, _CROWD, wanted.seed, self._say)
        before, seconds = asking.run(_Daemon(self._load))
        asking.look()
        with Client.connect() as client:
            client.call("gc", {})
            after = client.call("status", {})
        return {
            "sessions": wanted.sessions,
            "turns": wanted.turns,
            "seconds": seconds,
            "pool_tokens": _POOL_TOKENS,
            "n_ctx": n_ctx,
            **asking.record.to_json(),
            "memory": memory(self._model, before, after),
            "store": {name: after["store"][name] for name in ("file_bytes", "cap_bytes", "blocks", "lost_blocks")},
            "sessions_bytes": paths.bytes_on_disk(paths.sessions_file()),
        }


class _Daemon:
    """The benchmark's own, with its engine; the next client starts another one."""

    def __init__(self, loaded: Callable[[], dict[str, Any]]) -> None:
        self.loaded = loaded

    def stop_daemon(self) -> None:
        stop_daemon()

    def kill_daemon(self) -> None:
        with Client.connect() as client:
            client.kill()
            client.wait_closed(STOP_SECONDS)

    def kill_engine(self) -> None:
        with Client.connect() as client:
            engine, _ = pids(client.call("status", {}))
        if engine:
            os.kill(engine, signal.SIGKILL)


def lines(result: dict[str, Any]) -> Iterator[str]:
    """All parts, one after the other."""
    head = result["about"]
    yield f"{head['command']}  ({head['date']})"
    yield f"{head['model']}, kvd {head['kvd']}, {head['engine']}, {head['machine']}, {head['repository']}"
    parts = {"wake": wake.lines, "cost": turn_costs.lines, "crowd": crowd.lines, "remembered": remembered.lines}
    for name, shown in parts.items():
        if name in result:
            yield ""
            yield from shown(result[name])
