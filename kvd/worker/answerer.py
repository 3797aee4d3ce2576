"""One question: choose what fits, bring its KV in, compute the rest, stream the answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

from kvd.engine.llama import LlamaEngine
from kvd.errors import UsageError
from kvd.kv.bodies import Vector
from kvd.kv.pool import PoolFullError
from kvd.kv.prefetch import prefetch
from kvd.kv.spans import Spans
from kvd.worker.bringing import Bringing, Listener
from kvd.worker.decoding import HEADS, LIVE, PREFIX, RESIDENTS, SPARE, WORK, decode_run, generate
from kvd.worker.prompt import Piece, PromptBuilder, joined, select
from kvd.worker.resident import ResidentPrompts
from kvd.worker.reuse import Placed, Reuse, body_of, filled, place

LOAD_STEPS = ("read", "decompress", "dequantize", "rotate", "set")
STEPS = (*LOAD_STEPS, "heads", "prefill", "question")
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
    """Answers questions one at a time on one engine.

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
    ) -> None:
        self.engine, self.prompts, self.reuse, self.recompute = engine, prompts, reuse, recompute
        self.prefix_reuse = prefix_reuse
        self.resident = ResidentPrompts(engine, len(prompts.prefix), residents)

    def answer(self, question: Question, listener: Listener) -> dict[str, Any]:
        """The result of the `ask` request. Raises `UsageError`, `CancelledError`, `ModelError`."""
        turn = _Turn(self, question, listener)
        try:
            return turn.run()
        finally:
            self.resident.abandon()
            self.engine.clear((LIVE, WORK, SPARE, *HEADS))
            turn.release()

    def prefetch(self, draft: Question, client: int, interrupted: Callable[[], bool]) -> dict[str, Any]:
        """Bring what is stored of the chunks that `draft` would have in its prompt into the pool, leased to `client`.

        `hot`, `loaded` and `missing` blocks; why nothing can be done is `dropped`, else "".
        """
        if self.reuse is None or not draft.reuse:
            return {"dropped": "no-reuse", "hot": 0, "loaded": 0, "missing": 0}
        room = self.room(draft, len(self.prompts.ending(draft.text)))
        bodies = [body_of(piece, self.prompts) for piece in select(draft.pieces, draft.budget, room)]
        return {"dropped": "", **asdict(prefetch(self.reuse.pager, bodies, client, interrupted))}

    def longest_answer(self, question: Question) -> int:
        """Tokens: an answer may take half of a small context, whatever the limit allows."""
        return min(question.max_tokens, self.engine.n_ctx // 2)

    def room(self, question: Question, ending: int) -> int:
        """Tokens that a prompt which ends with so many has for chunks and their headers; may be negative."""
        return self.engine.n_ctx - len(self.prompts.prefix) - ending - self.longest_answer(question)


class _Turn:
    """One question's way through the engine."""

    def __init__(self, answerer: Answerer, question: Question, listener: Listener) -> None:
        self._engine, self._prompts, self._room = answerer.engine, answerer.prompts, answerer.room
        self._reuse = answerer.reuse if question.reuse else None
        self._recompute, self._prefix_reuse = answerer.recompute, answerer.prefix_reuse
        self._resident = answerer.resident
        self._question, self._listener = question, listener
        self._max_tokens = answerer.longest_answer(question)
        self._start = perf_counter()
        self._ttft_ms = 0.0
        self._spans = Spans()
        self._answer: list[str] = []
        self._bringing = Bringing(self._reuse, listener, self._spans) if self._reuse else None

    def run(self) -> dict[str, Any]:
        self._steps_ms()  # what a question that was cancelled has left
        ending = self._prompts.ending(self._question.text)
        pieces = self._select(len(ending))
        headers = [self._prompts.header(label, piece) for label, piece in enumerate(pieces, start=1)]
        # What the prompt takes besides the chunks.
        self._rest = len(ending) + self._max_tokens
        placed = self._place(pieces, headers) if self._reuse else None
        if placed:
            position, tokens = placed[-1].end, _count(placed)
        else:
            position, tokens = self._compute_all(pieces, headers)
        with self._spans.measure("question"):
            index = decode_run(self._engine, ending, position, LIVE, self._listener.step, logits=True)
        generated, finish = generate(
            self._engine,
            position + len(ending),
            index,
            self._max_tokens,
            self._emit,
            self._listener.step,
        )
        if placed:
            self._resident.keep((_content(item), item.end - item.start) for item in placed if not item.resident)
        steps = self._steps_ms()
        return {
            "answer": "".join(self._answer),
            "finish": finish,
            "chunks": [piece.index for piece in pieces],
            "tokens": {**tokens, "fresh": tokens["fresh"] + len(ending), "generated": generated},
            "timings_ms": {
                "load": round(sum(steps[name] for name in LOAD_STEPS), 2),
                "ttft": round(self._ttft_ms or self._elapsed_ms(), 2),
                "total": round(self._elapsed_ms(), 2),
            },
            "steps_ms": steps,
        }

    def release(self) -> None:
        """Let go of the pool's blocks."""
        if self._bringing is not None:
            self._bringing.release()

    def _steps_ms(self) -> dict[str, float]:
        seconds = self._spans.take()
        if self._reuse is not None:
            seconds |= self._reuse.pager.spans.take()
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
                f"fit the model's context of {self._engine.n_ctx}",
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
        self._resident.abandon()
        self._engine.remove(LIVE)
        self._resident.make_room(len(tokens) + self._rest)
        if self._prefix_reuse:
            self._engine.share(PREFIX, LIVE)
        else:
            decode_run(self._engine, self._prompts.prefix, 0, LIVE, self._listener.step)
        with self._spans.measure("prefill"):
            decode_run(self._engine, tokens, start, LIVE, self._listener.step)
        recalled = sum(len(piece.body) for piece in pieces)
        counts = {"recalled": recalled, "prefilled": recalled, "fresh": len(tokens) - recalled}
        return start + len(tokens), {**_NO_TOKENS, **counts}

    def _place(self, pieces: Sequence[Piece], headers: Sequence[Sequence[int]]) -> list[Placed] | None:
        """Bring the chunks into the live sequence; None where the pool or llama.cpp refuses."""
        reuse, bringing = self._reuse, self._bringing
        assert reuse is not None
        assert bringing is not None
        bodies = [body_of(piece, self._prompts) for piece in pieces]
        placed = place(len(self._prompts.prefix), headers, bodies, self._recompute)
        # Heads see what is stored of the chunks before them. Where those have tokens computed in place instead, the
        # cells of another prompt do not hold that, and only all of them will do.
        length = self._resident.begin([_content(item) for item in placed], whole=self._recompute > 0)
        resident, new = [replace(item, resident=True) for item in placed[:length]], placed[length:]
        self._resident.make_room(sum(len(item.fresh) + len(item.body.tokens) for item in new) + self._rest)
        try:
            stored = bringing.bring(bodies[length:], self._question.vector, bodies[:length])
        except PoolFullError:
            return None
        if not new:
            return resident
        new = filled(new, [fetched for fetched in stored if fetched is not None])
        if not reuse.set_bodies(new, resident):
            return None
        with self._spans.measure("heads"):
            reuse.join(new, self._listener.step)
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
