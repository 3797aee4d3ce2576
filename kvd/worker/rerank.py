"""A second opinion on what recall found: how much likelier a candidate's code makes the question.

Each candidate's stored KV is set behind the shared prefix, where it was made, under a fresh header that names its
place; a cue and the question follow, computed for many candidates in one batch. What is told is the mean
log-probability of the question's tokens, less what it is without any code (query likelihood, Ponte and Croft 1998).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from kvd.engine.llama import BATCH, BatchToken, run
from kvd.kv.bodies import Vector
from kvd.kv.costs import LinearCost
from kvd.kv.pager import Body, Fetched
from kvd.kv.pool import PoolFullError
from kvd.kv.spans import Spans
from kvd.types import Progress
from kvd.worker.answerer import Answerer
from kvd.worker.batcher import nothing
from kvd.worker.bringing import Bringing, Listener
from kvd.worker.decoding import HEADS, PREFIX, Slot
from kvd.worker.gate import log_softmax
from kvd.worker.layout import Placed, body_of, filled, place
from kvd.worker.prompt import Piece
from kvd.worker.resident import LivePrompt
from kvd.worker.reuse import Reuse

CUE = "\n\nA developer looking for this code would search for:"
ASKED_TOKENS = 96
"""Of a longer question the start is judged."""
_LEAST = 2
"""A lone candidate has nothing to be compared with."""
_OUTPUTS = 128
"""Logits of one batch: each takes 600 kB with a vocabulary of 150,000 tokens."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What to judge: `pieces` best first, as many as fit `seconds`. `vector` is the question's."""

    question: str
    pieces: Sequence[Piece]
    seconds: float
    vector: Vector | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """`gains` by candidate in nats a token of the question, None where it was not judged.

    `computed` candidates had no KV and got it.
    """

    gains: list[float | None]
    computed: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A candidate with its KV at hand. `index` is its place among all."""

    index: int
    placed: Placed


class Reranker:
    """Judges candidates, beside questions. `reuse` is the answerer's."""

    def __init__(self, answerer: Answerer, reuse: Reuse) -> None:
        self.engine, self.prompts, self.batcher = answerer.engine, answerer.prompts, answerer.batcher
        self.reuse = reuse
        self._admission, self._resident = answerer.admission, answerer.resident
        self.cue = self.engine.tokenize(CUE)
        self.cost = LinearCost()

    def judge(self, candidates: Candidates, listener: Listener) -> Judged:
        """Raises `CancelledError`, `ModelError`."""
        if len(candidates.pieces) < _LEAST:
            return Judged([None] * len(candidates.pieces), 0)
        asked = self.engine.tokenize(f" {candidates.question.strip()}")[:ASKED_TOKENS]
        judgement = _Judgement(self, candidates, asked, listener)
        # Resident prompts leave only where not even one candidate fits beside them.
        free = self.batcher.call(lambda: self._resident.free_cells)
        cells = max(judgement.least_cells, min(judgement.most_cells, free))
        try:
            live = self._admission.enter([], cells, judgement.step_in_time)
        except _LateError:
            return Judged([None] * len(candidates.pieces), 0)
        try:
            return judgement.run(live)
        finally:
            self._admission.leave(live)


class _Judgement:
    """One question's candidates."""

    def __init__(self, reranker: Reranker, candidates: Candidates, asked: Sequence[int], listener: Listener) -> None:
        self._engine, self._prompts, self._batcher = reranker.engine, reranker.prompts, reranker.batcher
        self._reuse, self._cue, self._cost = reranker.reuse, reranker.cue, reranker.cost
        self._candidates, self._asked, self._listener = candidates, asked, listener
        self._deadline = perf_counter() + candidates.seconds
        self._likely_without: float | None = None
        # Each is placed where its KV was made, as though it were the only one.
        self._places = [
            place(len(self._prompts.prefix), [self._prompts.header(1, piece)], [body_of(piece, self._prompts)], 0)[0]
            for piece in candidates.pieces
        ]

    @property
    def least_cells(self) -> int:
        """What the largest candidate takes."""
        return max(self._cells_for(item) for item in self._places)

    @property
    def most_cells(self) -> int:
        """What all of them take together."""
        return sum(self._cells_for(item) for item in self._places)

    def step_in_time(self) -> None:
        """For who still waits: raises at the deadline too."""
        self._listener.step()
        if perf_counter() > self._deadline:
            raise _LateError

    def run(self, live: LivePrompt) -> Judged:
        gains: list[float | None] = [None] * len(self._places)
        bringing = Bringing(self._reuse, self._listener, Spans(), live.slot)
        try:
            bodies = [item.body for item in self._places]
            stored = bringing.bring(bodies, self._candidates.vector, worth=lambda body: False)
            # What has KV comes first: to judge it takes a small part of what it takes to make KV.
            self._judge(self._with_kv(stored), gains, live)
            self._judge(self._made(stored, bringing), gains, live)
        except (PoolFullError, _RefusedError):
            # A pool for one prompt need not hold the code of many candidates. What is judged is judged.
            pass
        finally:
            bringing.release()
        if sum(gain is not None for gain in gains) < _LEAST:
            gains = [None] * len(gains)
        return Judged(gains, bringing.computed)

    def _with_kv(self, stored: Sequence[Fetched | None]) -> list[_Candidate]:
        return [
            _Candidate(index, filled([item], [fetched])[0])
            for index, (item, fetched) in enumerate(zip(self._places, stored, strict=True))
            if fetched is not None
        ]

    def _made(self, stored: Sequence[Fetched | None], bringing: Bringing) -> list[_Candidate]:
        """Candidates without KV that get it now: as many as can be made and judged in time, from the first on."""
        made: list[_Candidate] = []
        by_body: dict[Body, Fetched] = {}
        missing = [(index, item) for index, item in enumerate(self._places) if stored[index] is None]
        tokens = 0
        for index, item in missing:
            if item.body in by_body:
                fetched = bringing.again(by_body[item.body])
            elif self._in_time(len(item.body.tokens), tokens + self._tokens(item)):
                self._listener.progress(Progress("prefill", len(made), len(missing)))
                fetched = by_body[item.body] = bringing.make(item.body)
            else:
                continue
            tokens += self._tokens(item)
            made.append(_Candidate(index, filled([item], [fetched])[0]))
        return made

    def _in_time(self, body: int, judged: int) -> bool:
        """Whether a body of so many tokens can be made, and so many tokens computed to judge."""
        needed = self._reuse.pager.costs.prefill.predict(body) + self._predict(judged)
        return perf_counter() + needed <= self._deadline

    def _judge(self, ready: Sequence[_Candidate], gains: list[float | None], live: LivePrompt) -> None:
        ready = ready[: self._affordable(ready)]
        if not ready:
            return
        if self._likely_without is None:
            self._likely_without = self._without(live.slot)
        for group in self._groups(ready, live.reserved):
            for candidate, likely in zip(group, self._judge_group(group, live.slot), strict=True):
                gains[candidate.index] = likely - self._likely_without

    def _tokens(self, placed: Placed) -> int:
        """Tokens to compute for one candidate."""
        return len(placed.header) + len(self._cue) + len(self._asked)

    def _predict(self, tokens: int) -> float:
        """Seconds; as for prefill while nothing was judged."""
        return (self._cost if self._cost.known else self._reuse.pager.costs.prefill).predict(tokens)

    def _affordable(self, ready: Sequence[_Candidate]) -> int:
        """How many of the first candidates can be judged in time."""
        left = self._deadline - perf_counter()
        tokens = count = 0
        for candidate in ready:
            tokens += self._tokens(candidate.placed)
            if self._predict(tokens) > left:
                break
            count += 1
        return count

    def _groups(self, ready: Sequence[_Candidate], cells: int) -> Iterator[list[_Candidate]]:
        """Cut so that a batch holds all heads and all tails of a group, and the cells suffice."""
        group: list[_Candidate] = []
        for candidate in ready:
            if group and not self._fits([*group, candidate], cells):
                yield group
                group = []
            group.append(candidate)
        yield group

    def _fits(self, group: Sequence[_Candidate], cells: int) -> bool:
        tails = len(group) * (len(self._cue) + len(self._asked))
        heads = sum(len(candidate.placed.header) for candidate in group)
        return (
            len(group) <= len(HEADS)
            and max(tails, heads) <= BATCH
            and len(group) * len(self._asked) <= _OUTPUTS
            and sum(self._cells_for(candidate.placed) for candidate in group) <= cells
        )

    def _cells_for(self, placed: Placed) -> int:
        """What one takes at most; a body is in two sequences' cells while it is set."""
        return self._tokens(placed) + len(placed.body.tokens)

    def _judge_group(self, group: Sequence[_Candidate], slot: Slot) -> list[float]:
        """Mean log-probability of the question behind each candidate."""
        started = perf_counter()
        likely: list[float] = []
        while len(likely) < len(group):
            likely += self._judge_some(group[len(likely) :], slot)
        self._cost.observe(sum(self._tokens(item.placed) for item in group), perf_counter() - started)
        return likely

    def _judge_some(self, group: Sequence[_Candidate], slot: Slot) -> list[float]:
        """As many of them, from the first on, as there are sequences free."""
        with self._reuse.heads(len(group), slot) as sequences:
            part = [(sequence, item.placed) for sequence, item in zip(sequences, group, strict=False)]

            def share() -> None:
                for sequence, _ in part:
                    self._engine.share(PREFIX, sequence)

            self._batcher.call(share)
            heads = [token for sequence, item in part for token in run(item.header, item.start, sequence)]
            self._batcher.prefill(heads, self._listener.step, nothing, slice_tokens=BATCH)
            for sequence, item in part:
                self._set_body(item, sequence, slot)
            return self._likelihoods([(sequence, item.end) for sequence, item in part])

    def _set_body(self, placed: Placed, sequence: int, slot: Slot) -> None:
        """Put a stored body behind its head's cells."""
        if not self._reuse.set_bodies([placed], slot=slot):
            raise _RefusedError

        def put() -> None:
            self._engine.share(slot.spare, sequence, placed.stored_start, placed.end)
            self._engine.remove(slot.spare)

        self._batcher.call(put)

    def _without(self, slot: Slot) -> float:
        """Mean log-probability of the question where no code is given."""
        self._batcher.call(lambda: self._engine.share(PREFIX, slot.live))
        likely = self._likelihoods([(slot.live, len(self._prompts.prefix))])[0]
        self._batcher.call(lambda: self._engine.remove(slot.live))
        return likely

    def _likelihoods(self, ends: Sequence[tuple[int, int]]) -> list[float]:
        """Mean log-probability of the question behind the cue, for each sequence that ends before a position."""
        asked, first = self._asked, len(self._cue) - 1
        tail = [*self._cue, *asked[:-1]]
        batch = [
            BatchToken(token, start + offset, (sequence,), offset >= first)
            for sequence, start in ends
            for offset, token in enumerate(tail)
        ]
        likely: list[float] = []

        def note(index: int) -> None:
            # Now, because logits are there until the next step only.
            row = self._engine.logits(index)[np.newaxis]
            likely.append(float(log_softmax(row)[0, asked[len(likely) % len(asked)]]))

        self._batcher.prefill(batch, self._listener.step, nothing, note, BATCH)
        return [float(of_one.mean()) for of_one in np.array(likely).reshape(len(ends), len(asked))]


class _RefusedError(Exception):
    """llama.cpp did not take a state."""


class _LateError(Exception):
    """The time is over before there was room in the cells."""
