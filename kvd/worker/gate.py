"""The gate: may this model answer from reused KV? Measured on built-in code, against a prompt computed whole.

For a few questions about a few pieces of code the model's own answer after a joint prefill is the reference; the
same tokens are then given to it after a prompt made of reused KV, and their distributions are compared. Reuse is on
where the mean Kullback-Leibler divergence and the share of equal likeliest tokens stay within the bounds. The
figures vary with the few tokens that they are taken from: they tell working from broken, not good from better.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from kvd.engine.llama import BatchToken, LlamaEngine, run
from kvd.types import Progress, ProgressCallback
from kvd.worker.decoding import HEADS, LIVE, PREFIX, SLICE, SPARE, WORK, Step, decode_run
from kvd.worker.layout import body_of, filled, place
from kvd.worker.prompt import Piece, PromptBuilder, joined
from kvd.worker.reuse import Reuse
from kvd.worker.snippets import QUESTIONS, SNIPPETS

MOST_KL, LEAST_TOP1 = 0.20, 0.80
VERDICTS = ("on", "prefix-only", "off")
CANDIDATES = (0, 4, 8)
"""Numbers of recomputed tokens to choose from: on real questions more of them gain little and cost time."""
_ENOUGH = 1.2
"""A smaller number is taken when its KL is within this factor of the best."""
_ANSWER_TOKENS = 32
_VERSION = 1
_MOST_PREFIX_KL = 0.02
"""After a shared prefix against one sequence: rounding gives under 0.001, a prefix that is not seen 0.1 and more."""

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Figures:
    """Mean KL in nats, share of equal likeliest tokens, KL of the first token; over `tokens` answer tokens."""

    kl: float
    top1: float
    first_kl: float
    tokens: int

    @property
    def passes(self) -> bool:
        # Written so that a NaN fails.
        return self.kl <= MOST_KL and self.top1 >= LEAST_TOP1


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reuse` is "on", "prefix-only" (only the shared prefix is reused) or "off", with the reason where not on.

    `recompute` is the number of tokens at the start of each body to compute in place; `figures` those measured with
    it, None where nothing was measured. `key` names everything that the verdict depends on.
    """

    key: str
    reuse: str
    reason: str = ""
    recompute: int = 0
    figures: Figures | None = None

    @property
    def possible(self) -> bool:
        """Whether the gate could have come to it; one that was read from a file need not be true."""
        passes = self.reuse != "on" or (self.figures is not None and self.figures.passes)
        return self.reuse in VERDICTS and self.recompute in CANDIDATES and passes

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verdict_from_json(data: dict[str, Any]) -> Verdict:
    figures = data.get("figures")
    return Verdict(
        str(data["key"]),
        str(data["reuse"]),
        str(data["reason"]),
        int(data["recompute"]),
        Figures(**figures) if figures else None,
    )


def gate_key(model_sha256: str, prompts: PromptBuilder, codec_id: str) -> str:
    """Changes with the model's content, the engine's build, the codec and the prompt."""
    parts = (
        _VERSION,
        model_sha256,
        llama_cpp.__version__,
        codec_id,
        CANDIDATES,
        prompts.prefix,
        prompts.neutral_header(""),
    )
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def divergence(reference: Logits, other: Logits) -> Logits:
    """KL(reference || other) in nats of each row of logits `[tokens, vocabulary]`."""
    expected, found = log_softmax(reference), log_softmax(other)
    kl: Logits = (np.exp(expected) * (expected - found)).sum(axis=1)
    return kl


def log_softmax(logits: Logits) -> Logits:
    shifted = logits - logits.max(axis=1, keepdims=True)
    normalized: Logits = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalized


def compare(reference: Sequence[Logits], other: Sequence[Logits]) -> Figures:
    """Figures over several answers, each `[tokens, vocabulary]`."""
    kls = [divergence(a, b) for a, b in zip(reference, other, strict=True)]
    same = [a.argmax(axis=1) == b.argmax(axis=1) for a, b in zip(reference, other, strict=True)]
    return Figures(
        float(np.concatenate(kls).mean()),
        float(np.concatenate(same).mean()),
        float(np.mean([kl[0] for kl in kls])),
        sum(map(len, kls)),
    )


class Gate:
    """Checks one engine whose prefix is computed. Uses all sequences but the prefix, and leaves them empty."""

    def __init__(self, engine: LlamaEngine, prompts: PromptBuilder, step: Step) -> None:
        self._engine, self._prompts, self._step = engine, prompts, step
        self._pieces = [
            Piece(index, snippet.path, 1, snippet.text.count("\n"), snippet.scope, prompts.body(snippet.text))
            for index, snippet in enumerate(SNIPPETS)
        ]
        self._headers = [prompts.header(label, piece) for label, piece in enumerate(self._pieces, start=1)]
        self._endings = [prompts.ending(question) for question in QUESTIONS]

    def check(self, reuse: Reuse, key: str, progress: ProgressCallback = lambda progress: None) -> Verdict:
        """Measure every candidate and choose."""
        measured: dict[int, Figures] = {}
        try:
            progress(Progress("check", 0, len(CANDIDATES) + 1))
            answers, reference = self._reference()
            for count in CANDIDATES:
                progress(Progress("check", len(measured) + 1, len(CANDIDATES) + 1))
                measured[count] = self._measure(reuse, count, answers, reference)
        finally:
            self._engine.clear((LIVE, WORK, SPARE, *HEADS))
        enough = min(figures.kl for figures in measured.values()) * _ENOUGH
        recompute = next((count for count in CANDIDATES if measured[count].kl <= enough), CANDIDATES[-1])
        figures = measured[recompute]
        if figures.passes:
            return Verdict(key, "on", "", recompute, figures)
        reason = f"answers from reused KV differ too much (KL {figures.kl:.2f}, {figures.top1:.0%} same tokens)"
        return Verdict(key, self.prefix_verdict(), reason, 0, figures)

    def _reference(self) -> tuple[list[list[int]], list[Logits]]:
        """The model's own answers after a prompt computed whole, and the logits before and after each token."""
        self._engine.share(PREFIX, LIVE)
        start = len(self._prompts.prefix)
        tokens = joined(self._headers, self._pieces)
        decode_run(self._engine, tokens, start, LIVE, self._step)
        told = [
            greedy(self._engine, start + len(tokens), ending, _ANSWER_TOKENS, self._step) for ending in self._endings
        ]
        self._engine.clear((LIVE,))
        return [answer for answer, _ in told], [logits for _, logits in told]

    def _measure(
        self, reuse: Reuse, recompute: int, answers: Sequence[Sequence[int]], reference: Sequence[Logits]
    ) -> Figures:
        bodies = [body_of(piece, self._prompts) for piece in self._pieces]
        stored = reuse.pager.fetch(bodies)
        try:
            for index, body in enumerate(bodies):
                if stored[index] is None:
                    stored[index], _ = reuse.compute(body, self._step)
            found = [item for item in stored if item is not None]
            placed = filled(place(len(self._prompts.prefix), self._headers, bodies, recompute), found)
            if not reuse.set_bodies(placed):
                return Figures(float("inf"), 0.0, float("inf"), 0)
            reuse.join(placed, self._step)
            said = [
                forced_logits(self._engine, placed[-1].end, ending, answer, self._step)
                for ending, answer in zip(self._endings, answers, strict=True)
            ]
            return compare(reference, said)
        finally:
            self._engine.clear((LIVE,))
            reuse.pager.release(stored)

    def prefix_verdict(self) -> str:
        """ "prefix-only" where what follows a shared prefix is computed as in one sequence, else "off"."""
        engine, prefix, rest = self._engine, self._prompts.prefix, self._pieces[0].body
        try:
            engine.share(PREFIX, LIVE)
            shared = engine.logits(decode_run(engine, rest, len(prefix), LIVE, self._step, logits=True))
            engine.clear((LIVE,))
            decode_run(engine, prefix, 0, LIVE, self._step)
            whole = engine.logits(decode_run(engine, rest, len(prefix), LIVE, self._step, logits=True))
        finally:
            engine.clear((LIVE,))
        kl = float(divergence(whole[np.newaxis], shared[np.newaxis])[0])
        return "prefix-only" if kl < _MOST_PREFIX_KL else "off"


def greedy(
    engine: LlamaEngine, position: int, ending: Sequence[int], limit: int, step: Step
) -> tuple[list[int], Logits]:
    """The likeliest answer of at most `limit` tokens, and the logits as `forced_logits` would give them."""
    answer: list[int] = []
    rows = [engine.logits(decode_run(engine, ending, position, LIVE, step, logits=True))]
    while len(answer) < limit and not engine.ends_answer(token := int(rows[-1].argmax())):
        engine.decode([BatchToken(token, position + len(ending) + len(answer), (LIVE,), logits=True)])
        answer.append(token)
        rows.append(engine.logits(0))
        step()
    engine.remove(LIVE, position)
    return answer, np.stack(rows)


def forced_logits(
    engine: LlamaEngine, position: int, ending: Sequence[int], answer: Sequence[int], step: Step
) -> Logits:
    """Logits `[len(answer) + 1, vocabulary]` before and after each token of `answer`, given behind `ending`.

    The live sequence holds the prompt up to `position` and again so afterwards.
    """
    rows = [engine.logits(decode_run(engine, ending, position, LIVE, step, logits=True))]
    start = position + len(ending)
    for offset in range(0, len(answer), SLICE):
        part = answer[offset : offset + SLICE]
        engine.decode([replace(item, logits=True) for item in run(part, start + offset, LIVE)])
        rows += [engine.logits(index) for index in range(len(part))]
        step()
    engine.remove(LIVE, position)
    return np.stack(rows)
