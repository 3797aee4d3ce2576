"""One model in this process, and what it says after a prompt that was computed whole or made of reused KV."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from kvd.bench.questions import BenchQuestion
from kvd.config import Settings
from kvd.engine.llama import LlamaEngine, run
from kvd.errors import ModelError, UsageError
from kvd.kv.codec import F16, Codec
from kvd.kv.pager import Body, Fetched, Pager
from kvd.kv.pool import HotPool, pool_bytes_for
from kvd.kv.store import BlockStore, StoredBlock
from kvd.models.active import ActiveModel
from kvd.recall.rank import search
from kvd.service.indexer import update_index
from kvd.worker.decoding import LIVE, PREFIX, SPARE, WORK, decode_run
from kvd.worker.gate import divergence, forced_logits, greedy, log_softmax
from kvd.worker.layout import Placed, body_of, filled, place
from kvd.worker.probe import NotMovableError, probe
from kvd.worker.prompt import Piece, PromptBuilder, joined, select
from kvd.worker.reuse import Reuse, fingerprint

ANSWER_TOKENS = 40
"""Longest part of the model's own answer that distributions are compared on."""

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to make a prompt from stored KV.

    `head`: what stands before a body while its KV is made: "scope" (a header without the file's name, as kvd
    does), "own" (with it) or "none". `order`: "best-first" (as kvd does), "by-place" or "best-last". `in_turn`: heads
    are decoded one after the other, each seeing those before it, instead of all in one batch.
    """

    name: str
    codec: Codec
    recompute: int
    head: str = "scope"
    order: str = "best-first"
    in_turn: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question's chunks as they stand in the prompt, in `order`, and what follows them."""

    question: BenchQuestion
    order: str
    pieces: tuple[Piece, ...]
    headers: tuple[tuple[int, ...], ...]
    ending: tuple[int, ...]
    wanted: tuple[int, ...]
    """Tokens of the reference answer."""

    @property
    def recalled(self) -> int:
        return sum(len(piece.body) for piece in self.pieces)

    @property
    def chunks(self) -> list[int]:
        """Headers and bodies, one after the other."""
        return joined(self.headers, self.pieces)


@dataclass(frozen=True, slots=True)
class Reference:
    """What the model says after a joint prefill: its answer's tokens and the logits before and after each, and the
    reference answer's negative log-likelihood in nats a token."""

    answer: tuple[int, ...]
    logits: Logits
    nll: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How near reused KV comes to the reference, on one question.

    Shares are of the prompt between prefix and question: `header_share` of fresh headers, `recompute_share` of body
    tokens computed in place.
    """

    kl: float
    top1: float
    first_kl: float
    nll: float
    reference_nll: float
    header_share: float
    recompute_share: float


class Lab:
    """`folder` keeps references and bodies' KV for the next run: 12 MB and the KV in float16 for each question."""

    def __init__(self, model: ActiveModel, folder: Path, settings: Settings) -> None:
        self.folder, self.settings, self._sha256 = folder, settings, model.sha256
        folder.mkdir(parents=True, exist_ok=True)
        self.engine = LlamaEngine(model.path, settings.n_ctx, settings.threads, settings.gpu_layers)
        torch.set_num_threads(self.engine.threads)
        self.prompts = PromptBuilder(self.engine, settings.short_headers)
        try:
            self.movable = probe(self.engine, (LIVE, WORK, SPARE))
        except NotMovableError as error:
            raise ModelError(f"the KV of {model.name} can't be reused: {error}", hint="kvd setup --model") from error
        decode_run(self.engine, self.prompts.prefix, 0, PREFIX, _go_on)
        self._master_key = fingerprint(self._sha256, self.movable, self.prompts, F16)

    def close(self) -> None:
        self.engine.close()

    # Prompts

    def prompt(self, question: BenchQuestion, order: str = "best-first") -> Prompt:
        """Recall for `question`, with kvd's own index and settings."""
        update_index(question.root, self.settings, lambda progress: None, lambda: False)
        hits = search(question.root, question.text, self.settings.top_k)
        found = [
            Piece(
                index,
                hit.chunk.path,
                hit.chunk.start_line,
                hit.chunk.end_line,
                hit.chunk.scope,
                self.prompts.body(hit.chunk.text),
            )
            for index, hit in enumerate(hits)
        ]
        room = self.engine.n_ctx - len(self.prompts.prefix) - self.settings.max_tokens
        pieces = _ordered(select(found, self.settings.budget, room), order)
        if not pieces:
            raise UsageError(f"nothing is recalled for {question.id}", hint="ask in words that the code has")
        headers = tuple(tuple(self.prompts.header(label, piece)) for label, piece in enumerate(pieces, start=1))
        ending = tuple(self.prompts.ending(question.text))
        return Prompt(question, order, tuple(pieces), headers, ending, tuple(self.engine.tokenize(question.answer)))

    # The reference

    def reference(self, prompt: Prompt) -> Reference:
        """Joint prefill of the whole prompt, nothing cached; computed once and kept."""
        everything = (self._sha256, *self.prompts.prefix, *prompt.chunks, *prompt.ending, *prompt.wanted)
        digest = hashlib.sha256(repr(everything).encode()).hexdigest()[:32]
        file = self.folder / "references" / f"{digest}.npz"
        if not file.exists():
            _save(file, self._compute_reference(prompt))
        with np.load(file) as kept:
            return Reference(
                tuple(kept["answer"].tolist()),
                kept["logits"].astype(np.float32),
                float(kept["nll"]),
            )

    def _compute_reference(self, prompt: Prompt) -> Reference:
        tokens = [*self.prompts.prefix, *prompt.chunks]
        decode_run(self.engine, tokens, 0, LIVE, _go_on)
        answer, _ = greedy(self.engine, len(tokens), prompt.ending, ANSWER_TOKENS, _go_on)
        rows, nll = read_out(self.engine, prompt, prompt.ending, len(tokens), answer)
        return Reference(tuple(answer), rows, nll)

    def whole_again(self, prompt: Prompt, reference: Reference) -> Outcome:
        """The same joint prefill in other batches: what batch shapes alone change."""
        tokens = [*self.prompts.prefix, *prompt.chunks]
        for start in range(0, len(tokens), 96):
            self.engine.decode(run(tokens[start : start + 96], start, LIVE))
        rows, nll = read_out(self.engine, prompt, prompt.ending, len(tokens), reference.answer)
        return outcome(reference, rows, nll, 1.0, 0.0)

    # Reuse

    def reuse(self, codec: Codec, store: BlockStore | None = None) -> Reuse:
        """kvd's own machinery with a pool of its own; without a `store`, no disk."""
        shape = self.movable.shape
        pool = HotPool(shape, pool_bytes_for(shape, self.engine.n_ctx, self.settings.pool_bytes))
        store = store or BlockStore(self.folder / "none.db", readonly=True)
        key = fingerprint(self._sha256, self.movable, self.prompts, codec)
        return Reuse(self.engine, self.prompts, self.movable, Pager(pool, store, shape, key, codec))

    def bodies(self, prompt: Prompt, head: str = "scope") -> list[Body]:
        """What is stored of a prompt's chunks."""
        return [self._body(piece, head) for piece in prompt.pieces]

    def _body(self, piece: Piece, head: str) -> Body:
        if head == "own":
            return Body(tuple(self.prompts.header(1, piece)), piece.body)
        return body_of(piece, self.prompts) if head == "scope" else Body((), piece.body)

    def fetch(
        self, reuse: Reuse, bodies: Sequence[Body], change: Callable[[torch.Tensor], torch.Tensor] = lambda kv: kv
    ) -> tuple[list[Fetched], list[StoredBlock]]:
        """Bodies in the pool of `reuse`, pinned, from their kept KV; and the frames of those that were not there.

        `change` is done to their KV before it gets there.
        """
        fetched, frames = [], []
        for body, found in zip(bodies, reuse.pager.fetch(bodies), strict=True):
            if found is None:
                found, made = reuse.pager.add(body, change(self.master(reuse, body)))
                frames += made
            fetched.append(found)
        return fetched, frames

    def master(self, reuse: Reuse, body: Body) -> torch.Tensor:
        """A body's KV in float16; computed once and kept."""
        key = hashlib.sha256(self._master_key + repr(body).encode()).hexdigest()[:32]
        file = self.folder / "bodies" / f"{key}.npy"
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            partial = file.with_suffix(".partial.npy")
            np.save(partial, reuse.prefill(body, _go_on).numpy())
            partial.rename(file)
        return torch.from_numpy(np.load(file))

    def reused(self, prompt: Prompt, plan: Plan, reuse: Reuse, reference: Reference) -> Outcome:
        """Make the prompt as `plan` says (`reuse` has its codec) and compare what the model says then."""
        bodies = self.bodies(prompt, plan.head)
        fetched, _ = self.fetch(reuse, bodies)
        placed = filled(place(len(self.prompts.prefix), prompt.headers, bodies, plan.recompute), fetched)
        try:
            if not reuse.set_bodies(placed):
                raise RuntimeError("llama.cpp refused a state")
            if plan.in_turn:
                self._join_in_turn(placed)
            else:
                reuse.join(placed, _go_on)
        finally:
            reuse.pager.release(fetched)
        rows, nll = read_out(self.engine, prompt, prompt.ending, placed[-1].end, reference.answer)
        whole = len(prompt.chunks)
        recomputed = sum(item.recompute for item in placed)
        return outcome(reference, rows, nll, (whole - prompt.recalled) / whole, recomputed / whole)

    def _join_in_turn(self, placed: Sequence[Placed]) -> None:
        """`Reuse.join` with each head behind all that comes before it."""
        self.engine.share(PREFIX, LIVE)
        for item in placed:
            decode_run(self.engine, item.fresh, item.start, LIVE, _go_on)
            self.engine.share(SPARE, LIVE, item.stored_start, item.end)
        self.engine.remove(SPARE)


def _ordered(pieces: Sequence[Piece], order: str) -> list[Piece]:
    if order == "by-place":
        return sorted(pieces, key=lambda piece: (piece.path, piece.start_line))
    return list(reversed(pieces)) if order == "best-last" else list(pieces)


def read_out(
    engine: LlamaEngine, prompt: Prompt, ending: Sequence[int], position: int, answer: Sequence[int]
) -> tuple[Logits, float]:
    """Logits along `answer` and the reference answer's NLL, behind the live sequence, which is then cleared.

    The live sequence holds the prompt up to `position`; `ending` is the rest of it.
    """
    rows = forced_logits(engine, position, ending, answer, _go_on)
    wanted = forced_logits(engine, position, ending, prompt.wanted, _go_on)
    engine.clear((LIVE,))
    likely = log_softmax(wanted[:-1])[np.arange(len(prompt.wanted)), list(prompt.wanted)]
    return rows, -float(likely.mean())


def outcome(reference: Reference, rows: Logits, nll: float, header_share: float, recompute_share: float) -> Outcome:
    kl = divergence(reference.logits, rows)
    same = reference.logits.argmax(axis=1) == rows.argmax(axis=1)
    return Outcome(
        float(kl.mean()), float(same.mean()), float(kl[0]), nll, reference.nll, header_share, recompute_share
    )


def _save(file: Path, reference: Reference) -> None:
    file.parent.mkdir(exist_ok=True)
    # Shifted so that float16 has its finest steps where probabilities are; the distribution stays the same.
    logits = (reference.logits - reference.logits.max(axis=1, keepdims=True)).astype(np.float16)
    partial = file.with_suffix(".partial.npz")
    np.savez(partial, answer=reference.answer, logits=logits, nll=reference.nll)
    partial.rename(file)


def _go_on() -> None:
    """Nobody cancels a benchmark but by Ctrl-C."""
