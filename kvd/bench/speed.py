"""Times to the first token, taken from the daemon as any client would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvd import paths
from kvd.bench.disk import drop_page_cache
from kvd.bench.lab import Lab, Prompt
from kvd.bench.questions import BenchQuestion
from kvd.config import Settings
from kvd.errors import UnavailableError
from kvd.kv.codec import DEFAULT
from kvd.kv.store import BlockStore
from kvd.rpc.client import Client

STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Shot:
    """One ask: `ttft_ms` and what it was made of, and the tokens by where their KV came from."""

    ttft_ms: float
    steps_ms: dict[str, float]
    tokens: dict[str, int]


@dataclass(slots=True)
class Timed:
    """One question at one budget: computed whole, from the disk after a restart, from the hot pool, and with the code
    still in the model's cells."""

    question: str
    budget: int
    full: list[Shot] = field(default_factory=list)
    cold: list[Shot] = field(default_factory=list)
    hot: list[Shot] = field(default_factory=list)
    resident: list[Shot] = field(default_factory=list)


def stop_daemon() -> None:
    """End the daemon of this environment, if one runs, and wait until it is gone."""
    client = Client.running()
    if client is None:
        return
    with client:
        client.call("shutdown", {"mode": "drain"}, timeout=STOP_SECONDS)
        if not client.wait_closed(STOP_SECONDS):
            raise UnavailableError("the benchmark's daemon does not stop", hint="kvd stop --now")


def fill_store(lab: Lab, prompts: Sequence[Prompt]) -> list[int]:
    """Put the prompts' blocks into the cold store, which no daemon may have open. Returns each one's bytes there."""
    store = BlockStore(paths.store_file())
    sizes = []
    try:
        for prompt in prompts:
            # A pool of its own for each: shared blocks count for every prompt that needs them.
            reuse = lab.reuse(DEFAULT)
            fetched, frames = lab.fetch(reuse, lab.bodies(prompt))
            store.put(frames)
            sizes.append(sum(len(frame.data) for frame in frames))
            reuse.pager.release(fetched)
        store.checkpoint()
    finally:
        store.close()
    return sizes


def write_settings(settings: Settings) -> None:
    """What the benchmark's daemon goes by from its next question on."""
    file = paths.config_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f"short_headers = {str(settings.short_headers).lower()}\n"
        f"recompute = {settings.recompute}\n"
        f"resident_prompts = {settings.resident_prompts}\n"
    )


def timed(question: BenchQuestion, budget: int, rounds: int, settings: Settings) -> Timed:
    """Ask in turn, `rounds` times: after a restart with the page cache dropped, again, and without any reuse; all that
    with no prompt left in the cells, then with."""
    result = Timed(question.id, budget)
    write_settings(replace(settings, resident_prompts=0))
    for _ in range(rounds):
        stop_daemon()
        drop_page_cache(paths.store_file())
        with Client.connect() as client:
            result.cold.append(_ask(client, question, budget))
            result.hot += [_ask(client, question, budget) for _ in range(2)]
            if len(result.full) < max(1, rounds // 2):
                result.full.append(_ask(client, question, budget, reuse=False))
    write_settings(settings)
    with Client.connect() as client:
        _ask(client, question, budget)
        result.resident += [_ask(client, question, budget) for _ in range(rounds)]
    return result


def _ask(client: Client, question: BenchQuestion, budget: int, reuse: bool = True) -> Shot:
    params: dict[str, Any] = {
        "question": question.text,
        "repo": str(question.root),
        "budget": budget,
        "max_tokens": 1,
        "reuse": reuse,
    }
    result = client.call("ask", params, lambda value: None)
    steps = {"recall": result["timings_ms"]["recall"], **result["steps_ms"]}
    return Shot(float(result["timings_ms"]["ttft"]), steps, result["tokens"])
