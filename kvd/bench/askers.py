"""`kvd bench askers`: several who ask at once, beside one after the other and llama.cpp's own server.

Every question is asked once beforehand, so that its code's KV is in the hot pool. No prompt stays in the cells: each
question loads its code, computes headers and question, and is answered. The server gets the same tokens as a prompt,
either for the first time (it computes them) or again (it has them in the cells of one of its slots).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from kvd import paths
from kvd.bench.about import about
from kvd.bench.lab import Lab
from kvd.bench.llama_server import LlamaServer
from kvd.bench.questions import BenchQuestion
from kvd.bench.speed import stop_daemon
from kvd.bench.statistics import median
from kvd.config import Settings
from kvd.models.active import ActiveModel
from kvd.rpc.client import Client

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Load:
    """Who asks: `askers` at a time, each of so many `questions` once, `rounds` times; answers of `max_tokens`, prompts
    with `budget` tokens of code."""

    askers: tuple[int, ...]
    questions: int
    rounds: int
    max_tokens: int
    budget: int


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer in seconds: when it was asked for, its first text came, and its last; and its tokens."""

    asked: float
    first: float
    last: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Round:
    """All questions, by so many askers: `seconds` in all, median and longest `ttft` in seconds, and `decoded`: tokens a
    second while any answer was being written, the first token of each not counted."""

    askers: int
    seconds: float
    ttft: float
    longest_ttft: float
    decoded: float


Ask = Callable[[int], Answered]


def asked_by(askers: int, count: int, ask: Ask) -> Round:
    """Ask `count` questions, each asker one after the other."""
    started = perf_counter()
    with ThreadPoolExecutor(askers) as threads:
        answers = list(threads.map(ask, range(count)))
    return summed_up(askers, perf_counter() - started, answers)


def summed_up(askers: int, seconds: float, answers: Sequence[Answered]) -> Round:
    """A round whose answers these are."""
    ttfts = [answer.first - answer.asked for answer in answers]
    writing = covered([(answer.first, answer.last) for answer in answers])
    decoded = sum(answer.tokens - 1 for answer in answers) / writing if writing else 0.0
    return Round(askers, seconds, median(ttfts).value, max(ttfts), decoded)


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


class Run:
    """One benchmark of one model. `server` is llama.cpp's program, None to leave it out."""

    def __init__(self, model: ActiveModel, folder: Path, load: Load, server: Path | None, say: Say) -> None:
        self._model, self._folder, self._load, self._server, self._say = model, folder, load, server, say
        self._settings = Settings(budget=load.budget, max_tokens=load.max_tokens)

    def measure(self, questions: Sequence[BenchQuestion], command: str) -> dict[str, Any]:
        """Rounds by who answered; `questions` are asked in turn."""
        lab = Lab(self._model, self._folder / "lab", self._settings)
        try:
            prompts = [lab.prompt(question) for question in questions]
            tokens = [[*lab.prompts.prefix, *prompt.chunks, *prompt.ending] for prompt in prompts]
        finally:
            lab.close()
        cells = -(-sum(len(prompt) + self._load.max_tokens for prompt in tokens) // 256) * 256 + 1024
        rounds = {"kvd": self._kvd(questions, cells)}
        if self._server is not None:
            rounds |= self._peer(tokens, cells)
        return {
            "about": {
                **about(command),
                "model": self._model.name,
                "cells": cells,
                "prompt_tokens": [len(prompt) for prompt in tokens],
                "max_tokens": self._load.max_tokens,
            },
            "rounds": {name: [asdict(item) for item in items] for name, items in rounds.items()},
        }

    def _rounds(self, name: str, ask: Ask) -> Iterator[Round]:
        for number, askers in itertools.product(range(self._load.rounds), self._load.askers):
            self._say(f"{name}: {askers} at a time, round {number + 1} of {self._load.rounds}")
            yield asked_by(askers, self._load.questions, ask)

    def _kvd(self, questions: Sequence[BenchQuestion], cells: int) -> list[Round]:
        stop_daemon()
        file = paths.config_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        most = max(self._load.askers)
        file.write_text(f"n_ctx = {cells}\nparallel = {most}\nresident_prompts = 0\nbudget = {self._load.budget}\n")
        clients = threading.local()

        def ask(number: int) -> Answered:
            if not hasattr(clients, "mine"):
                clients.mine = Client.connect()
            return _ask_kvd(clients.mine, questions[number % len(questions)], self._load.max_tokens)

        try:
            for number in range(len(questions)):
                self._say(f"kvd: computing what the prompts need, {number + 1} of {len(questions)}")
                ask(number)
            return list(self._rounds("kvd", ask))
        finally:
            stop_daemon()

    def _peer(self, prompts: Sequence[Sequence[int]], cells: int) -> dict[str, list[Round]]:
        """Prompts that it has never seen need a new server each time."""
        assert self._server is not None
        found: dict[str, list[Round]] = {"llama-server, first time": [], "llama-server, again": []}
        most = max(self._load.askers)
        for number, askers in itertools.product(range(self._load.rounds), self._load.askers):
            with LlamaServer(self._server, self._model.path, cells, most, self._folder / "server.log") as server:

                def ask(index: int, server: LlamaServer = server) -> Answered:
                    asked = perf_counter()
                    first, last, tokens = server.complete(prompts[index % len(prompts)], self._load.max_tokens)
                    return Answered(asked, first, last, tokens)

                for name, rounds in found.items():
                    self._say(f"{name}: {askers} at a time, round {number + 1} of {self._load.rounds}")
                    rounds.append(asked_by(askers, self._load.questions, ask))
        return found


def _ask_kvd(client: Client, question: BenchQuestion, max_tokens: int) -> Answered:
    times: list[float] = []

    def note(value: dict[str, Any]) -> None:
        if value["kind"] == "token":
            times.append(perf_counter())

    asked = perf_counter()
    params = {"question": question.text, "repo": str(question.root), "max_tokens": max_tokens}
    result = client.call("ask", params, note)
    return Answered(asked, times[0], times[-1], int(result["tokens"]["generated"]))


def lines(result: dict[str, Any]) -> Iterator[str]:
    """A table of medians over the rounds, against one at a time of the same."""
    head = result["about"]
    prompt = median(head["prompt_tokens"]).value
    yield f"{head['model']}, kvd {head['kvd']}, {head['engine']}, {head['machine']}, {head['date']}"
    yield f"prompts of {prompt:,.0f} tokens (median), answers of up to {head['max_tokens']}, {head['cells']:,} cells"
    yield ""
    yield "| | askers | all answered after | against one | first token, median | longest | tokens/s | against one |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, rounds in result["rounds"].items():
        by_askers: dict[int, list[dict[str, Any]]] = {}
        for item in rounds:
            by_askers.setdefault(item["askers"], []).append(item)
        rows = {askers: _medians(items) for askers, items in by_askers.items()}
        alone = rows.get(1)
        for askers, row in rows.items():
            sooner = f"{alone['seconds'] / row['seconds']:.2f}x" if alone else ""
            faster = f"{row['decoded'] / alone['decoded']:.2f}x" if alone else ""
            yield (
                f"| {name} | {askers} | {row['seconds']:.1f} s | {sooner} | {row['ttft']:.2f} s "
                f"| {row['longest_ttft']:.2f} s | {row['decoded']:.1f} | {faster} |"
            )


def _medians(items: Sequence[dict[str, Any]]) -> dict[str, float]:
    names = ("seconds", "ttft", "longest_ttft", "decoded")
    return {name: median([item[name] for item in items]).value for name in names}
