"""`kvd bench codec`: ways to quantize KV, on the KV of real chunks: bits, errors, and what answers lose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from kvd.bench.lab import Lab, Outcome, Plan, Prompt
from kvd.bench.questions import BenchQuestion
from kvd.bench.schemes import SCHEMES, Coded, Scheme, code, compressed_bytes
from kvd.bench.statistics import Estimate, mean, mean_difference
from kvd.bench.text import counted, interval
from kvd.config import Settings
from kvd.kv.codec import F16
from kvd.models.active import ActiveModel

_RECOMPUTE = 0
"""What is recomputed was not quantized: without it a codec shows most."""


def measure(
    model: ActiveModel,
    folder: Path,
    settings: Settings,
    questions: Sequence[BenchQuestion],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """A row for each scheme, and one for float16 as it is."""
    lab = Lab(model, folder / "lab", settings)
    try:
        prompts = [lab.prompt(question) for question in questions]
        half = [_outcome(lab, prompt, None) for prompt in prompts]
        rows = []
        for scheme in SCHEMES:
            say(scheme.name)
            rows.append(_row(lab, prompts, scheme, half))
        return {
            "model": model.name,
            "questions": [question.id for question in questions],
            "float16_kl": [outcome.kl for outcome in half],
            "rows": rows,
        }
    finally:
        lab.close()


def _outcome(lab: Lab, prompt: Prompt, scheme: Scheme | None) -> Outcome:
    reuse = lab.reuse(F16)
    if scheme is not None:
        lab.fetch(reuse, lab.bodies(prompt), lambda kv: code(kv, scheme).kv)
    return lab.reused(prompt, Plan("", F16, _RECOMPUTE), reuse, lab.reference(prompt))


def _row(lab: Lab, prompts: Sequence[Prompt], scheme: Scheme, half: Sequence[Outcome]) -> dict[str, Any]:
    reuse = lab.reuse(F16)
    bodies = [lab.master(reuse, body) for prompt in prompts for body in lab.bodies(prompt)]
    coded = [code(kv, scheme) for kv in bodies]
    values = sum(kv.numel() for kv in bodies)
    outcomes = [_outcome(lab, prompt, scheme) for prompt in prompts]
    return {
        "name": scheme.name,
        "bits": compressed_bytes(coded, scheme) * 8 / values,
        "uncompressed_bits": sum(len(part) for body in coded for parts in body.payloads for part in parts) * 8 / values,
        "entropy_of_codes": sum(body.entropy_bits for body in coded) / values,
        "key_error": _error(bodies, coded, 0),
        "value_error": _error(bodies, coded, 1),
        "kl": [outcome.kl for outcome in outcomes],
        "top1": [outcome.top1 for outcome in outcomes],
        "added_kl": mean_difference([o.kl for o in outcomes], [o.kl for o in half]).to_json(),
    }


def _error(bodies: Sequence[torch.Tensor], coded: Sequence[Coded], which: int) -> float:
    """Relative RMS error; keys without their mean over the body, which carries nearly all of their energy."""
    lost = signal = 0.0
    for kv, back in zip(bodies, coded, strict=True):
        x = kv[:, which].float()
        lost += float((x - back.kv[:, which].float()).square().sum())
        signal += float((x - x.mean(dim=1, keepdim=True) if which == 0 else x).square().sum())
    return float((lost / signal) ** 0.5)


def lines(result: dict[str, Any]) -> Iterator[str]:
    """The table."""
    yield f"{result['model']}, {counted(len(result['questions']), 'question')}, none recomputed"
    yield f"{'':44} {'bits':>6} {'raw':>6} {'entropy':>8} {'K error':>8} {'V error':>8} {'KL':>8}  added KL [95 %]"
    yield f"{'float16':44} {16:>6.2f} {16:>6.2f} {'':>8} {0:>8.4f} {0:>8.4f} {mean(result['float16_kl']).value:>8.4f}"
    for row in result["rows"]:
        added = interval(Estimate(*row["added_kl"]), "+.4f")
        yield (
            f"{row['name']:44} {row['bits']:>6.2f} {row['uncompressed_bits']:>6.2f} {row['entropy_of_codes']:>8.2f} "
            f"{row['key_error']:>8.4f} {row['value_error']:>8.4f} {mean(row['kl']).value:>8.4f}  "
            f"{added}"
        )
