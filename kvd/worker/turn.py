"""One question's way through the engine, alone or as a turn of a conversation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kvd.engine.llama import run
from kvd.errors import UsageError
from kvd.kv.pager import Fetched
from kvd.kv.pool import PoolFullError
from kvd.kv.spans import Spans
from kvd.types import Progress
from kvd.worker.batcher import nothing
from kvd.worker.bringing import Bringing, Listener
from kvd.worker.conversation import Conversation, code_of, length_of, placed_from
from kvd.worker.decoding import PREFIX, Answering
from kvd.worker.layout import Item, Placed, Said, ahead, as_said, body_of, filled, place, runs_of
from kvd.worker.memory import blocks_for, loadable
from kvd.worker.prompt import Piece, select
from kvd.worker.resident import LivePrompt
from kvd.worker.reuse import Reuse
from kvd.worker.tally import Tally

if TYPE_CHECKING:
    from kvd.worker.answerer import Answerer, Question

LOAD_STEPS = ("read", "decompress", "dequantize", "rotate", "set")
STEPS = ("wait", *LOAD_STEPS, "heads", "prefill", "question")
"""What the time to the first token is made of."""


class _RefusedError(Exception):
    """llama.cpp does not take the cells: everything is to be computed."""


class Turn:
    """A question that belongs to no conversation is one without earlier turns, and leaves no other cells than its
    chunks'."""

    def __init__(self, answerer: Answerer, question: Question, listener: Listener, remember: bool = True) -> None:
        self._answerer, self._engine, self._prompts = answerer, answerer.engine, answerer.prompts
        self._batcher, self._admission = answerer.batcher, answerer.admission
        self._reuse = answerer.reuse if question.reuse else None
        self._question, self._listener = question, listener
        self._said = question.conversation or Conversation(b"")
        self._ahead = answerer.memory_parts(question.pinned, self._said.summary)
        self._remembers = remember and question.conversation is not None
        self._max_tokens = answerer.longest_answer(question)
        self._start = perf_counter()
        self._ttft_ms = 0.0
        self._spans = Spans()
        self._tally = Tally()
        self._answer: list[str] = []
        self._live: LivePrompt | None = None
        self._stays: list[tuple[Hashable, int]] = []
        """Contents of cells that stay after the answer, and their numbers."""

    def run(self) -> dict[str, Any]:
        ending = self._ending()
        pieces = self._select(len(ending))
        # What the prompt takes besides the chunks.
        self._rest = len(ending) + self._max_tokens
        try:
            items = self._prepare(pieces)
            answering = self._decode(ending, self._start_behind(items))
            remembered = self._remember(items, ending, answering)
        except BaseException:
            self._stays = []
            raise
        finally:
            self._leave()
        steps = self._steps_ms()
        tokens = self._tally.tokens()
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
            **remembered,
        }

    def _earlier(self, code: bool, stored: bool) -> list[Item]:
        """What stands in the prompt before this turn, and what leads from there to it. `stored`: as `ahead` has it."""
        said = self._said
        items = ahead(self._ahead, len(self._prompts.prefix), stored)
        if said.items:
            opening = Said((*said.pending, *self._prompts.opening(code)), 0, said.turns + 1)
            items += placed_from([*said.items, opening], self._start_behind(items))
        return items

    def _start_behind(self, items: Sequence[Item]) -> int:
        return items[-1].end if items else len(self._prompts.prefix)

    def _select(self, ending: int) -> list[Piece]:
        earlier = length_of(self._earlier(True, False))
        room = self._answerer.room(self._question, ending) - earlier
        if room < 0:
            raise UsageError(
                f"the question has {ending} tokens; with an answer of up to {self._max_tokens} it does not "
                f"fit the model's context of {self._engine.longest}",
                hint="ask a shorter question, or give a smaller --max-tokens",
            )
        pieces = select(self._question.pieces, self._question.budget, room)
        if self._question.pieces and not pieces and not earlier:
            smallest = min(len(piece.body) for piece in self._question.pieces)
            raise UsageError(
                f"the smallest piece of code found has {smallest} tokens: none fits a budget of "
                f"{self._question.budget} tokens with {max(0, room)} left in the model's context",
                hint="give a larger --budget, a smaller --max-tokens or a shorter question",
            )
        if earlier and not pieces and select(self._question.pieces, self._question.budget, self._engine.longest):
            full = "the conversation fills the model's context: no more code is added"
            self._listener.progress(Progress("notice", message=full))
        return pieces

    def _prepare(self, pieces: Sequence[Piece]) -> list[Item]:
        """Put what was said and the chunks into the live sequence; all that stands there behind the prefix."""
        earlier = self._earlier(bool(pieces), self._reuse is not None)
        start = self._start_behind(earlier)
        turn, first = self._said.turns + 1, self._said.labels + 1
        if self._reuse is not None and (earlier or pieces):
            bodies = [body_of(piece, self._prompts) for piece in pieces]
            headers = [self._prompts.header(label, piece) for label, piece in enumerate(pieces, first)]
            placed = [
                replace(item, turn=turn, labels=(label,))
                for label, item in enumerate(place(start, headers, bodies, self._answerer.recompute), first)
            ]
            try:
                return self._place(self._reuse, earlier, placed)
            except (PoolFullError, _RefusedError):
                self._leave()
        items = self._earlier(bool(pieces), False)
        if pieces:
            code = code_of(pieces, range(first, first + len(pieces)), self._prompts, turn)
            items.append(replace(code, start=start))
        return self._compute_all(items)

    def _enter(self, runs: Sequence[tuple[Hashable, int]], rest: int, together: int | None = None) -> LivePrompt:
        with self._spans.measure("wait"):
            self._live = self._admission.enter(runs, rest, self._listener.step, together)
        return self._live

    def _leave(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            self._admission.leave(live, self._stays)

    def _compute_all(self, items: list[Item]) -> list[Item]:
        """Prefill everything; of a conversation, what the cells do not hold."""
        self._tally = Tally()
        shared = self._question.conversation is not None and self._question.reuse and self._answerer.prefix_reuse
        runs = runs_of(items) if shared else [(object(), cells) for _, cells in runs_of(items)]
        live = self._enter(runs, self._rest + self._answerer.unshared)
        held = len(live.runs)
        sequence, step = live.slot.live, self._listener.step
        if self._answerer.prefix_reuse:
            self._batcher.call(lambda: self._engine.share(PREFIX, sequence))
        else:
            self._batcher.prefill(run(self._prompts.prefix, 0, sequence), step, nothing)
        self._tally.resident(items[:held])
        computed = self._compute(items[held:], live)
        if self._question.conversation is not None and self._answerer.prefix_reuse:
            self._stays = runs_of(computed)
        return [*items[:held], *computed]

    def _compute(self, items: Sequence[Item], live: LivePrompt) -> list[Item]:
        """Prefill items, the first of which stands where the live sequence ends."""
        tokens = [token for item in items for token in item.tokens]
        if tokens:
            with self._spans.measure("prefill"):
                self._batcher.prefill(run(tokens, items[0].start, live.slot.live), self._listener.step, nothing)
        self._tally.computed(items)
        return [as_said(item) for item in items]

    def _place(self, reuse: Reuse, earlier: list[Item], placed: list[Placed]) -> list[Item]:
        """Bring everything into the live sequence. Raises `PoolFullError`, `_RefusedError`."""
        items = [*earlier, *placed]
        # While heads are computed there are two cells for each token that is computed in place.
        rest = max(self._rest, sum(item.recompute for item in placed))
        # Heads see what is stored of the chunks before them. Where those have tokens computed in place instead, the
        # cells of another prompt do not hold that, and only all of them will do.
        live = self._enter(runs_of(items), rest, len(earlier) if self._answerer.recompute else None)
        held = len(live.runs)
        first = max(0, held - len(earlier))
        had, new = placed[:first], placed[first:]
        bringing = Bringing(reuse, self._listener, self._spans, live.slot)
        try:
            self._tally.resident(items[:held])
            woken, stored = self._wake(bringing, items[:held], earlier[held:], new, live)
            computed = self._compute(earlier[held + len(woken) :], live)
            new = filled(new, stored)
            start = earlier[-1].end if earlier else 0
            resident = [replace(item, resident=True) for item in had]
            if new and not reuse.set_bodies(new, resident, live.slot, self._spans, start):
                raise _RefusedError
        finally:
            # What is in cells needs no blocks.
            bringing.release()
        if new:
            with self._spans.measure("heads"):
                reuse.join(new, self._listener.step, live.slot)
        self._tally.placed(new)
        self._stays = runs_of([*woken, *computed, *new])
        return [*items[:held], *woken, *computed, *new]

    def _wake(
        self, bringing: Bringing, held: Sequence[Item], missing: Sequence[Item], new: Sequence[Placed], live: LivePrompt
    ) -> tuple[list[Item], list[Fetched]]:
        """Load of what is `missing` of the conversation as much as is stored; what was loaded, and the `new` bodies'
        blocks."""
        blocks = blocks_for(missing, self._said.blocks)
        said = bringing.said([block.address for block in blocks])
        there = blocks[: len(said.blocks)]
        woken = loadable(missing, there)
        chunks = [item for item in woken if isinstance(item, Placed)]
        bodies = [item.body for item in (*chunks, *new)]
        resident = [item.body for item in held if isinstance(item, Placed)]
        found = [f for f in bringing.bring(bodies, self._question.vector, resident) if f is not None]
        stored, found = found[: len(chunks)], found[len(chunks) :]
        memory = self._answerer.memory
        if woken and not (memory and memory.load(woken, there, said, stored, live.slot, self._spans)):
            raise _RefusedError
        if missing and not woken and not held:
            self._batcher.call(lambda: self._engine.share(PREFIX, live.slot.live))
        if any(item.at >= 0 for item in missing[len(woken) :]):
            # What is lost is stored anew, behind what is there.
            end = there[-1].end if there else min(item.at for item in missing if item.at >= 0)
            kept = tuple(block for block in self._said.blocks if block.at < end)
            self._said = replace(self._said, blocks=kept)
        self._tally.woken(woken, said, stored)
        return woken, found

    def _decode(self, ending: Sequence[int], position: int) -> Answering:
        """Compute what follows the chunks, then the answer."""
        assert self._live is not None
        sequence, step = self._live.slot.live, self._listener.step
        answering = self._answering(sequence, position + len(ending))
        before = self._elapsed_ms()
        try:
            self._batcher.prefill(run(ending, position, sequence, logits=True), step, nothing, answering.choose)
            # To the first token and not to when this thread goes on.
            self._spans.add({"question": ((self._ttft_ms or self._elapsed_ms()) - before) / 1000})
            self._batcher.answer(answering, step)
        finally:
            answering.close()
        return answering

    def _remember(self, items: list[Item], ending: Sequence[int], answering: Answering) -> dict[str, Any]:
        """What the conversation has come to, as a member of the result; its cells stay, and what is not stored of it
        goes to the store."""
        if not self._remembers:
            self._unremembered()
            return {}
        assert self._live is not None
        answerer, said = self._answerer, self._said
        computed = len(answering.said) - (answering.finish == "length")
        start = self._start_behind(items)
        last = Said((*ending, *answering.said[:computed]), start, said.turns + 1)
        items = [*items, last]
        if answerer.prefix_reuse:
            self._stays = [*self._stays, *runs_of([last])]
        labels = max((label for item in items for label in item.labels), default=0)
        turn = said.turns + 1
        after = replace(
            said,
            items=tuple(item for item in items if item.turn),
            pending=tuple(answering.said[computed:]),
            labels=max(said.labels, labels),
            turns=turn,
            used={**said.used, **{piece.present: turn for piece in self._question.pieces if piece.present}},
        )
        replaced: list[bytes] = []
        if answerer.memory is not None:
            after, frames, replaced = answerer.memory.keep(after, items, self._live.slot)
            if frames:
                self._listener.blocks(frames)
        kv = answerer.reuse.pager.fingerprint.hex() if answerer.reuse else ""
        told = {"state": after.to_state(answerer.model, kv), "replaced": [key.hex() for key in replaced]}
        return {"conversation": {**told, "tokens": after.length, **self._tally.conversation()}}

    def _ending(self) -> list[int]:
        return self._prompts.ending(self._question.text)

    def _answering(self, sequence: int, start: int) -> Answering:
        return Answering(self._engine, sequence, start, self._max_tokens, self._emit)

    def _unremembered(self) -> None:
        self._stays = self._stays if self._question.conversation is None else []

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
