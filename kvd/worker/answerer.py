"""One question: choose what fits, bring its KV in, compute the rest, stream the answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

from kvd.engine.llama import LlamaEngine, run
from kvd.errors import UsageError
from kvd.kv.bodies import Vector
from kvd.kv.pool import PoolFullError
from kvd.kv.prefetch import prefetch
from kvd.kv.spans import Spans
from kvd.worker.admission import Admission
from kvd.worker.batcher import Batcher, nothing
from kvd.worker.bringing import Bringing, Listener
from kvd.worker.decoding import PREFIX, RESIDENTS, Answering
from kvd.worker.prompt import Piece, PromptBuilder, joined, select
from kvd.worker.resident import LivePrompt, ResidentPrompts
from kvd.worker.reuse import Placed, Reuse, body_of, filled, place

LOAD_STEPS = ("read", "decompress", "dequantize", "rotate", "set")
STEPS = ("wait", *LOAD_STEPS, "heads", "prefill", "question")
"""What the time to the first token is made of."""


@dataclass(frozen=True, slots=True)
class Question:
    """`pieces` best first; `budget` and `max_tokens` in tokens; without `reuse` everything is computed.

    `vector` says what the question is about.
    """

    text: str
    pieces: Sequence[Piece]
    budget: int
    max_tokens: int
    reuse: bool = True
    vector: Vector | None = None


class Answerer:
    """Answers questions on one engine, up to `parallel` at a time, each in a thread of its own if `batcher` is served.

    The shared prefix must be computed. `reuse` is None where bodies' KV can't be reused: all but the prefix is then
    computed, and without `prefix_reuse` that too. `recompute` is how many tokens at the start of each body are
    computed in place although they are stored; `residents` how many prompts may stay in the cells after their answer.
    """

    def __init__(
        self,
        engine: LlamaEngine,
        prompts: PromptBuilder,
        reuse: Reuse | None,
        recompute: int,
        prefix_reuse: bool = True,
        residents: int = len(RESIDENTS),
        parallel: int = 1,
        batcher: Batcher | None = None,
    ) -> None:
        self.engine, self.prompts, self.reuse, self.recompute = engine, prompts, reuse, recompute
        self.prefix_reuse = prefix_reuse
        self.batcher = batcher or Batcher(engine)
        self.resident = ResidentPrompts(engine, len(prompts.prefix), residents, parallel)
        self.admission = Admission(self.batcher, self.resident)

    def answer(self, question: Question, listener: Listener) -> dict[str, Any]:
        """The result of the `ask` request. Raises `UsageError`, `CancelledError`, `ModelError`."""
        return _Turn(self, question, listener).run()

    def prefetch(self, draft: Question, client: int, interrupted: Callable[[], bool]) -> dict[str, Any]:
        """Bring what is stored of the chunks that `draft` would have in its prompt into the pool, leased to `client`.

        `hot`, `loaded` and `missing` blocks; why nothing can be done is `dropped`, else "".
        """
        if self.reuse is None or not draft.reuse:
            return {"dropped": "no-reuse", "hot": 0, "loaded": 0, "missing": 0}
        room = self.room(draft, len(self.prompts.ending(draft.text)))
        bodies = [body_of(piece, self.prompts) for piece in select(draft.pieces, draft.budget, room)]
        with self.reuse.lock:
            return {"dropped": "", **asdict(prefetch(self.reuse.pager, bodies, client, interrupted))}

    def longest_answer(self, question: Question) -> int:
        """Tokens: an answer may take half of a small context, whatever the limit allows."""
        return min(question.max_tokens, self.engine.longest // 2)

    def room(self, question: Question, ending: int) -> int:
        """Tokens that a prompt which ends with so many has for chunks and their headers; may be negative."""
        prompt = min(self.engine.longest, self.engine.n_ctx - self.unshared)
        return prompt - len(self.prompts.prefix) - ending - self.longest_answer(question)

    @property
    def unshared(self) -> int:
        """Cells that a prompt needs for the prefix beside those that lie under all prompts."""
        return 0 if self.prefix_reuse else len(self.prompts.prefix)

    def check_integrity(self) -> None:
        """Raises `IntegrityError` when the pool's or the cells' books are wrong. While no question is answered."""
        self.batcher.call(self.resident.check_integrity)
        if self.reuse is not None:
            with self.reuse.lock:
                self.reuse.pager.pool.check_integrity()


class _Turn:
    """One question's way through the engine."""

    def __init__(self, answerer: Answerer, question: Question, listener: Listener) -> None:
        self._engine, self._prompts, self._room = answerer.engine, answerer.prompts, answerer.room
        self._batcher, self._admission = answerer.batcher, answerer.admission
        self._reuse = answerer.reuse if question.reuse else None
        self._recompute, self._prefix_reuse = answerer.recompute, answerer.prefix_reuse
        self._unshared = answerer.unshared
        self._question, self._listener = question, listener
        self._max_tokens = answerer.longest_answer(question)
        self._start = perf_counter()
        self._ttft_ms = 0.0
        self._spans = Spans()
        self._answer: list[str] = []
        self._live: LivePrompt | None = None
        self._stays: list[tuple[Hashable, int]] = []
        """Contents of cells that stay after the answer, and their numbers."""

    def run(self) -> dict[str, Any]:
        ending = self._prompts.ending(self._question.text)
        pieces = self._select(len(ending))
        headers = [self._prompts.header(label, piece) for label, piece in enumerate(pieces, start=1)]
        # What the prompt takes besides the chunks.
        self._rest = len(ending) + self._max_tokens
        try:
            position, tokens = self._prepare(pieces, headers)
            answering = self._decode(ending, position)
        except BaseException:
            self._stays = []
            raise
        finally:
            self._leave()
        steps = self._steps_ms()
        return {
            "answer": "".join(self._answer),
            "finish": answering.finish,
            "chunks": [piece.index for piece in pieces],
            "tokens": {**tokens, "fresh": tokens["fresh"] + len(ending), "generated": answering.tokens},
            "timings_ms": {
                "load": round(sum(steps[name] for name in LOAD_STEPS), 2),
                "ttft": round(self._ttft_ms or self._elapsed_ms(), 2),
                "total": round(self._elapsed_ms(), 2),
            },
            "steps_ms": steps,
        }

    def _prepare(self, pieces: Sequence[Piece], headers: Sequence[Sequence[int]]) -> tuple[int, dict[str, int]]:
        """Put the chunks into the live sequence; (position behind them, token counts)."""
        if self._reuse is not None and (placed := self._place(self._reuse, pieces, headers)) is not None:
            self._stays = [(_content(item), item.end - item.start) for item in placed if not item.resident]
            return placed[-1].end if placed else len(self._prompts.prefix), _count(placed)
        return self._compute_all(pieces, headers)

    def _enter(self, runs: Sequence[tuple[Hashable, int]], rest: int, whole: bool = False) -> LivePrompt:
        with self._spans.measure("wait"):
            self._live = self._admission.enter(runs, rest, self._listener.step, whole)
        return self._live

    def _leave(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            self._admission.leave(live, self._stays)

    def _decode(self, ending: Sequence[int], position: int) -> Answering:
        """Compute what follows the chunks, then the answer."""
        assert self._live is not None
        sequence, step = self._live.slot.live, self._listener.step
        answering = Answering(self._engine, sequence, position + len(ending), self._max_tokens, self._emit)
        before = self._elapsed_ms()
        try:
            self._batcher.prefill(run(ending, position, sequence, logits=True), step, nothing, answering.choose)
            # To the first token and not to when this thread goes on.
            self._spans.add({"question": ((self._ttft_ms or self._elapsed_ms()) - before) / 1000})
            self._batcher.answer(answering, step)
        finally:
            answering.close()
        return answering

    def _steps_ms(self) -> dict[str, float]:
        seconds = self._spans.take()
        return {name: round(seconds.get(name, 0.0) * 1000, 2) for name in STEPS}

    def _elapsed_ms(self) -> float:
        return (perf_counter() - self._start) * 1000

    def _emit(self, text: str) -> None:
        if not self._ttft_ms:
            self._ttft_ms = self._elapsed_ms()
        if text:
            self._answer.append(text)
            self._listener.token(text)

    def _select(self, ending: int) -> list[Piece]:
        room = self._room(self._question, ending)
        if room < 0:
            raise UsageError(
                f"the question has {ending} tokens; with an answer of up to {self._max_tokens} it does not "
                f"fit the model's context of {self._engine.longest}",
                hint="ask a shorter question, or give a smaller --max-tokens",
            )
        pieces = select(self._question.pieces, self._question.budget, room)
        if self._question.pieces and not pieces:
            smallest = min(len(piece.body) for piece in self._question.pieces)
            raise UsageError(
                f"the smallest piece of code found has {smallest} tokens: none fits a budget of "
                f"{self._question.budget} tokens with {max(0, room)} left in the model's context",
                hint="give a larger --budget, a smaller --max-tokens or a shorter question",
            )
        return pieces

    def _compute_all(self, pieces: Sequence[Piece], headers: Sequence[Sequence[int]]) -> tuple[int, dict[str, int]]:
        """Prefill everything; (position behind it, token counts)."""
        start = len(self._prompts.prefix)
        tokens = joined(headers, pieces)
        self._leave()
        live = self._enter([("computed", self._unshared + len(tokens))], self._rest).slot.live
        step = self._listener.step
        if self._prefix_reuse:
            self._batcher.call(lambda: self._engine.share(PREFIX, live))
        else:
            self._batcher.prefill(run(self._prompts.prefix, 0, live), step, nothing)
        with self._spans.measure("prefill"):
            self._batcher.prefill(run(tokens, start, live), step, nothing)
        recalled = sum(len(piece.body) for piece in pieces)
        counts = {"recalled": recalled, "prefilled": recalled, "fresh": len(tokens) - recalled}
        return start + len(tokens), {**_NO_TOKENS, **counts}

    def _place(self, reuse: Reuse, pieces: Sequence[Piece], headers: Sequence[Sequence[int]]) -> list[Placed] | None:
        """Bring the chunks into the live sequence; None where there are none, or the pool or llama.cpp refuses."""
        bodies = [body_of(piece, self._prompts) for piece in pieces]
        placed = place(len(self._prompts.prefix), headers, bodies, self._recompute)
        if not placed:
            return None
        # Heads see what is stored of the chunks before them. Where those have tokens computed in place instead, the
        # cells of another prompt do not hold that, and only all of them will do.
        runs = [(_content(item), item.end - item.start) for item in placed]
        # While heads are computed there are two cells for each token that is computed in place.
        rest = max(self._rest, sum(item.recompute for item in placed))
        live = self._enter(runs, rest, whole=self._recompute > 0)
        length = len(live.runs)
        resident, new = [replace(item, resident=True) for item in placed[:length]], placed[length:]
        bringing = Bringing(reuse, self._listener, self._spans, live.slot)
        try:
            stored = bringing.bring(bodies[length:], self._question.vector, bodies[:length])
            if not new:
                return resident
            new = filled(new, [fetched for fetched in stored if fetched is not None])
            if not reuse.set_bodies(new, resident, live.slot, self._spans):
                return None
        except PoolFullError:
            return None
        finally:
            # What is in cells needs no blocks.
            bringing.release()
        with self._spans.measure("heads"):
            reuse.join(new, self._listener.step, live.slot)
        return [*resident, *new]


_NO_TOKENS = dict.fromkeys(("recalled", "resident", "reused_hot", "reused_cold", "recomputed", "prefilled", "fresh"), 0)


def _content(item: Placed) -> Hashable:
    """What decides the state of a chunk's cells, behind those of the chunks before it."""
    return item.header, item.body, item.recompute


def _count(placed: Sequence[Placed]) -> dict[str, int]:
    """Tokens of the bodies by where their KV came from, which add up to `recalled`, and of the headers computed."""
    new = [item for item in placed if not item.resident]

    def total(tier: str) -> int:
        return sum(item.stored.count(tier, item.recompute) for item in new)

    return {
        "recalled": sum(len(item.body.tokens) for item in placed),
        "resident": sum(len(item.body.tokens) for item in placed if item.resident),
        "reused_hot": total("hot"),
        "reused_cold": total("cold"),
        "recomputed": sum(item.recompute for item in new),
        "prefilled": total("new"),
        "fresh": sum(len(item.header) for item in new),
    }
