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
from kvd.kv.pager import Body
from kvd.kv.pool import PoolFullError
from kvd.kv.spans import Spans
from kvd.worker.answerer import Answerer
from kvd.worker.bringing import Bringing, Listener
from kvd.worker.decoding import HEADS, PREFIX, SPARE, WORK, Step
from kvd.worker.gate import log_softmax
from kvd.worker.prompt import Piece
from kvd.worker.reuse import Placed, Reuse, body_of, filled, place

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
    """Judges candidates between two questions. `reuse` is the answerer's."""

    def __init__(self, answerer: Answerer, reuse: Reuse) -> None:
        self._engine, self._prompts, self._resident = answerer.engine, answerer.prompts, answerer.resident
        self._reuse = reuse
        self._cue = self._engine.tokenize(CUE)
        self._cost = LinearCost()

    def judge(self, candidates: Candidates, listener: Listener) -> Judged:
        """Raises `CancelledError`, `ModelError`."""
        if len(candidates.pieces) < _LEAST:
            return Judged([None] * len(candidates.pieces), 0)
        deadline = perf_counter() + candidates.seconds
        asked = self._engine.tokenize(f" {candidates.question.strip()}")[:ASKED_TOKENS]
        gains: list[float | None] = [None] * len(candidates.pieces)
        bringing = Bringing(self._reuse, listener, Spans())
        try:
            ready = self._bring(candidates, len(asked), bringing, deadline)
            ready = ready[: self._affordable(ready, len(asked), deadline)]
            if ready:
                without = self._without(asked)
                for group in self._groups(ready, len(asked)):
                    for candidate, likely in zip(group, self._judge_group(group, asked, listener.step), strict=True):
                        gains[candidate.index] = likely - without
        except (PoolFullError, _RefusedError):
            # A pool for one prompt need not hold the code of many candidates. What is judged is judged.
            pass
        finally:
            self._engine.clear((WORK, SPARE, *HEADS))
            bringing.release()
        return Judged(gains, bringing.computed)

    def _bring(self, candidates: Candidates, asked: int, bringing: Bringing, deadline: float) -> list[_Candidate]:
        """The candidates that have KV, those among them that could be computed in time."""
        headers = [self._prompts.header(1, piece) for piece in candidates.pieces]
        bodies = [body_of(piece, self._prompts) for piece in candidates.pieces]
        # Each is placed as though it were the only one.
        places = [
            place(len(self._prompts.prefix), [header], [body], 0)[0]
            for header, body in zip(headers, bodies, strict=True)
        ]
        judging = self._predict(sum(self._tokens(item, asked) for item in places))

        def worth(body: Body) -> bool:
            return perf_counter() + self._reuse.pager.costs.prefill.predict(len(body.tokens)) + judging <= deadline

        stored = bringing.bring([item.body for item in places], candidates.vector, worth=worth)
        return [
            _Candidate(index, filled([item], [fetched])[0])
            for index, (item, fetched) in enumerate(zip(places, stored, strict=True))
            if fetched is not None
        ]

    def _place(self, piece: Piece) -> Placed:
        """Where its KV was made, as though it were the only one."""
        header = self._prompts.header(1, piece)
        return place(len(self._prompts.prefix), [header], [body_of(piece, self._prompts)], 0)[0]

    def _tokens(self, placed: Placed, asked: int) -> int:
        """Tokens to compute for one candidate."""
        return len(placed.header) + len(self._cue) + asked

    def _predict(self, tokens: int) -> float:
        """Seconds; as for prefill while nothing was judged."""
        return (self._cost if self._cost.known else self._reuse.pager.costs.prefill).predict(tokens)

    def _affordable(self, ready: Sequence[_Candidate], asked: int, deadline: float) -> int:
        """How many of the first candidates can be judged in time."""
        left = deadline - perf_counter()
        tokens = count = 0
        for candidate in ready:
            tokens += self._tokens(candidate.placed, asked)
            if self._predict(tokens) > left:
                break
            count += 1
        return count if count >= _LEAST else 0

    def _groups(self, ready: Sequence[_Candidate], asked: int) -> Iterator[list[_Candidate]]:
        """Cut so that each has its sequence, a batch holds all heads and all tails, and the cells suffice."""
        group: list[_Candidate] = []
        for candidate in ready:
            if group and not self._fits([*group, candidate], asked):
                yield group
                group = []
            group.append(candidate)
        yield group

    def _fits(self, group: Sequence[_Candidate], asked: int) -> bool:
        tails = len(group) * (len(self._cue) + asked)
        heads = sum(len(candidate.placed.header) for candidate in group)
        return (
            len(group) <= len(HEADS)
            and max(tails, heads) <= BATCH
            and len(group) * asked <= _OUTPUTS
            and self._cells(group, asked) <= self._resident.free_cells
        )

    def _cells(self, group: Sequence[_Candidate], asked: int) -> int:
        """What they take at most; a body is in two sequences' cells while it is set."""
        return sum(self._tokens(item.placed, asked) + len(item.placed.body.tokens) for item in group)

    def _judge_group(self, group: Sequence[_Candidate], asked: Sequence[int], step: Step) -> list[float]:
        """Mean log-probability of the question behind each candidate."""
        engine, started = self._engine, perf_counter()
        # Only where not even one fits beside them do prompts have to leave.
        self._resident.make_room(self._cells(group, len(asked)))
        heads: list[BatchToken] = []
        for sequence, candidate in zip(HEADS, group, strict=False):
            engine.share(PREFIX, sequence)
            heads += run(candidate.placed.header, candidate.placed.start, sequence)
        engine.decode(heads)
        step()
        for sequence, candidate in zip(HEADS, group, strict=False):
            self._set_body(candidate.placed, sequence)
        ends = [(sequence, candidate.placed.end) for sequence, candidate in zip(HEADS, group, strict=False)]
        likely = self._likelihoods(ends, asked)
        engine.clear(HEADS)
        step()
        self._cost.observe(sum(self._tokens(item.placed, len(asked)) for item in group), perf_counter() - started)
        return likely

    def _set_body(self, placed: Placed, sequence: int) -> None:
        """Put a stored body behind its head's cells."""
        if not self._reuse.set_bodies([placed]):
            raise _RefusedError
        self._engine.share(SPARE, sequence, placed.stored_start, placed.end)
        self._engine.remove(SPARE)

    def _without(self, asked: Sequence[int]) -> float:
        """Mean log-probability of the question where no code is given."""
        sequence = HEADS[0]
        self._engine.share(PREFIX, sequence)
        likely = self._likelihoods([(sequence, len(self._prompts.prefix))], asked)[0]
        self._engine.clear([sequence])
        return likely

    def _likelihoods(self, ends: Sequence[tuple[int, int]], asked: Sequence[int]) -> list[float]:
        """Mean log-probability of `asked` behind the cue, for each sequence that ends before a position."""
        tail = [*self._cue, *asked[:-1]]
        batch = [
            BatchToken(token, start + offset, (sequence,), offset >= len(self._cue) - 1)
            for sequence, start in ends
            for offset, token in enumerate(tail)
        ]
        self._engine.decode(batch)
        first = len(self._cue) - 1
        likely = []
        for number in range(len(ends)):
            rows = np.stack([self._engine.logits(number * len(tail) + first + place) for place in range(len(asked))])
            likely.append(float(log_softmax(rows)[np.arange(len(asked)), list(asked)].mean()))
        return likely


class _RefusedError(Exception):
    """llama.cpp did not take a state."""
