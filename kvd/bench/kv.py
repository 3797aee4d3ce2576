"""`kvd bench kv`: how near reused KV comes to a full prefill, what it costs on disk, and how much sooner it answers."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import llama_cpp

import kvd
from kvd import paths
from kvd.bench import speed
from kvd.bench.disk import HOW_DROPPED, cpu_name, disk_bytes_per_second, memory_bytes_per_second
from kvd.bench.lab import Lab, Outcome, Plan, Prompt
from kvd.bench.peer import CELLS, Restored, restored
from kvd.bench.questions import BenchQuestion
from kvd.config import Settings
from kvd.kv.codec import CODECS, DEFAULT, F16, INT4, INT4_SYMMETRIC, INT8
from kvd.kv.store import BlockStore
from kvd.models.active import ActiveModel
from kvd.worker.gate import Gate, gate_key
from kvd.worker.reuse import Reuse

Say = Callable[[str], None]

KVD, KVD_HALF = "kvd", "kvd, float16"
"""kvd as it is, and with its blocks unquantized."""

FLOOR = "full prefill, other batches"
"""What differs between two joint prefills of the same prompt."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much to measure. `variants`, `timed` and `peers` are numbers of questions, from the first on."""

    variants: int
    timed: int
    peers: int
    rounds: int
    recompute: int = -1


class Run:
    """One benchmark of one model; `measure` gives everything as one JSON object."""

    def __init__(self, model: ActiveModel, folder: Path, settings: Settings, command: str, say: Say) -> None:
        self._model, self._settings, self._command, self._say = model, settings, command, say
        speed.stop_daemon()
        self._lab = Lab(model, folder / "lab", settings)
        self._last = folder / "last.json"

    def close(self) -> None:
        self._lab.close()
        speed.stop_daemon()

    def measure(self, questions: Sequence[BenchQuestion], wanted: Wanted) -> dict[str, Any]:
        """Quality on all `questions`; variants, times and llama.cpp's own way on the first ones.

        What is done is kept in `last.json` while the rest runs.
        """
        self._say("gate: asking about built-in code")
        key = gate_key(self._model.sha256, self._lab.prompts, DEFAULT.id)
        verdict = Gate(self._lab.engine, self._lab.prompts, lambda: None).check(self._lab.reuse(DEFAULT), key)
        recompute = wanted.recompute if wanted.recompute >= 0 else verdict.recompute
        prompts = [self._lab.prompt(question) for question in questions]
        result: dict[str, Any] = {
            "about": self._about(),
            "gate": verdict.to_json(),
            "questions": [prompt.question.id for prompt in prompts],
            "recalled": [prompt.recalled for prompt in prompts],
        }
        parts: dict[str, Callable[[], Any]] = {
            "speed": lambda: self._speed(prompts[: wanted.timed], wanted.rounds) if wanted.timed else None,
            "peers": lambda: self._peers(prompts[: wanted.peers]),
            "variants": lambda: self._quality(prompts[: wanted.variants], _other_plans(recompute), floor=True),
            "quality": lambda: self._quality(prompts, _main_plans(recompute)),
        }
        for name, part in parts.items():
            result[name] = part()
            self._last.write_text(json.dumps(result))
        return result

    def _about(self) -> dict[str, Any]:
        return {
            "command": self._command,
            "date": datetime.now(UTC).date().isoformat(),
            "kvd": kvd.__version__,
            "engine": f"llama-cpp-python {llama_cpp.__version__}",
            "machine": f"{platform.machine()}, {self._lab.engine.threads} threads, {cpu_name()}",
            "gpu": self._lab.engine.gpu,
            "model": self._model.name,
            "kv_bytes_per_token": self._lab.movable.shape.bytes_per_token,
        }

    def _quality(self, prompts: Sequence[Prompt], plans: Sequence[Plan], floor: bool = False) -> list[dict[str, Any]]:
        """One row for each plan, with its outcomes by question; `floor` adds the same prefill in other batches."""
        rows: dict[str, list[Outcome]] = {}
        reuses = {name: self._lab.reuse(codec) for name, codec in CODECS.items()}
        for count, prompt in enumerate(prompts, start=1):
            self._say(f"quality {count}/{len(prompts)}: {prompt.question.id}, {len(plans)} ways")
            if floor:
                rows.setdefault(FLOOR, []).append(self._lab.whole_again(prompt, self._lab.reference(prompt)))
            for plan in plans:
                rows.setdefault(plan.name, []).append(self._one(prompt, plan, reuses[plan.codec.name]))
        return [
            {"name": name, "outcomes": [asdict(outcome) for outcome in outcomes]} for name, outcomes in rows.items()
        ]

    def _one(self, prompt: Prompt, plan: Plan, reuse: Reuse) -> Outcome:
        if plan.order != prompt.order:
            prompt = self._lab.prompt(prompt.question, plan.order)
        return self._lab.reused(prompt, plan, reuse, self._lab.reference(prompt))

    def _speed(self, prompts: Sequence[Prompt], rounds: int) -> dict[str, Any]:
        self._say("filling the store")
        sizes = speed.fill_store(self._lab, prompts)
        store = BlockStore(paths.store_file(), readonly=True)
        stored = store.stats()
        store.close()
        values = stored["tokens"] * self._lab.movable.shape.bytes_per_token // 2
        budgets = [self._settings.budget] * len(prompts)
        plan = [*zip(prompts, budgets, strict=True), *((prompts[0], budgets[0] // part) for part in (2, 4))]
        times = []
        for count, (prompt, budget) in enumerate(plan, start=1):
            self._say(f"times {count}/{len(plan)}: {prompt.question.id}, budget {budget}")
            times.append(asdict(speed.timed(prompt.question, budget, rounds, self._settings)))
        return {
            "page_cache": HOW_DROPPED,
            "times": times,
            "frame_bytes": sizes,
            "bits_per_value": {
                "frames": stored["payload_bytes"] * 8 / values,
                "file": stored["file_bytes"] * 8 / values,
            },
            "disk_bytes_per_second": disk_bytes_per_second(paths.store_file()),
            "memory_bytes_per_second": memory_bytes_per_second(),
        }

    def _peers(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        found: list[Restored] = []
        for count, prompt in enumerate(prompts, start=1):
            self._say(f"llama.cpp's own save and restore {count}/{len(prompts)}")
            reference = self._lab.reference(prompt)
            found += [restored(self._model, self._lab, cells, prompt, reference, self._lab.folder) for cells in CELLS]
        return [asdict(item) for item in found]


def _main_plans(recompute: int) -> list[Plan]:
    return [Plan(KVD, DEFAULT, recompute), Plan(KVD_HALF, F16, recompute)]


def _other_plans(recompute: int) -> list[Plan]:
    """What else could be done, one change at a time, beside what kvd does."""
    return [
        *_main_plans(recompute),
        *(Plan(f"float16, {count} recomputed", F16, count) for count in (0, 4, 8, 16, 32)),
        Plan("INT8", INT8, recompute),
        Plan("INT4", INT4, recompute),
        Plan("INT4 symmetric, max|x|/7", INT4_SYMMETRIC, recompute),
        Plan("made behind no header", F16, recompute, head="none"),
        Plan("made behind its own header", F16, recompute, head="own"),
        Plan("heads one after the other", F16, recompute, in_turn=True),
        Plan("chunks by place", F16, recompute, order="by-place"),
        Plan("best chunk last", F16, recompute, order="best-last"),
    ]


def wanted(quick: bool, given: dict[str, int | None]) -> Wanted:
    """The usual amount of work, or a quick run's, with what was asked for instead."""
    usual = Wanted(variants=2, timed=1, peers=1, rounds=1) if quick else Wanted(variants=12, timed=6, peers=3, rounds=3)
    return replace(usual, **{name: count for name, count in given.items() if count is not None})
