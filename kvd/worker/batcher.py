"""Many questions on one engine: what they want computed goes into the same steps (continuous batching).

One thread runs the engine. Between two steps it does what other threads want done with cells, and lets new work join:
each running answer has one token in every step, and prefills share the rest of it in turn, so that answers keep
flowing while long prompts are computed (Orca, Yu et al. 2022; chunked prefill, Sarathi, Agrawal et al. 2023).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Generic, TypeVar

from kvd.engine.llama import BATCH, BatchToken, LlamaEngine
from kvd.errors import ModelError, UnavailableError
from kvd.worker.decoding import SLICE, Answering, Step

_STEP_SECONDS = 0.3
"""What a step that answers wait for may take, by what tokens took lately."""
_LEAST_BESIDE, _MOST_BESIDE = 16, 64
"""Prefill tokens in such a step. Fewer than 64 are slower for each token, and more gain nothing."""
_FORGET = 0.7
"""What the measure of a token's time keeps of its former value with each step."""

T = TypeVar("T")


def nothing() -> None:
    """For what is computed for its cells alone."""


@dataclass(slots=True, eq=False)
class _Prefill(Generic[T]):
    """Tokens to compute: takes part in steps until all of them are."""

    tokens: Sequence[BatchToken]
    slice: int
    read: Callable[[int], object]
    then: Callable[[], T]
    step: Step
    done: Future[T] = field(default_factory=Future)
    position: int = 0

    def take(self, room: int) -> Sequence[BatchToken]:
        """What is to be computed next, at most so many tokens."""
        return self.tokens[self.position : self.position + min(room, self.slice)]

    def computed(self, count: int, index: int) -> None:
        """So many tokens were, the last of them at `index` of the batch."""
        end = self.position + count
        _read_logits(self.tokens[self.position : end], index - count + 1, self.read)
        self.position = end
        if end == len(self.tokens):
            self.done.set_result(self.then())


def _read_logits(tokens: Sequence[BatchToken], start: int, read: Callable[[int], object]) -> None:
    """Call `read` with the index of each token whose logits are kept; the first token is the batch's `start`-th."""
    for index, token in enumerate(tokens, start):
        if token.logits:
            read(index)


@dataclass(slots=True, eq=False)
class _Answer:
    """One token of an answer in each step; otherwise like `_Prefill`."""

    answering: Answering
    step: Step
    done: Future[None] = field(default_factory=Future)

    def take(self, room: int) -> Sequence[BatchToken]:
        following = self.answering.following
        return () if following is None else (following,)

    def computed(self, count: int, index: int) -> None:
        self.answering.choose(index)
        if self.answering.following is None:
            self.done.set_result(None)


@dataclass(slots=True, eq=False)
class _Call(Generic[T]):
    """Something to be done between two steps."""

    work: Callable[[], T]
    done: Future[T] = field(default_factory=Future)


_Work = _Prefill[Any] | _Answer
_Part = tuple[_Work, Sequence[BatchToken]]


class Batcher:
    """Until `serve` runs in a thread, whoever calls has the engine alone, and all is done in the caller's thread.

    `beat` is called after each step.
    """

    def __init__(self, engine: LlamaEngine, beat: Callable[[], None] = lambda: None) -> None:
        self._engine, self.beat = engine, beat
        self._changed = threading.Condition()
        self._arrived: list[_Prefill[Any] | _Answer | _Call[Any]] = []
        self._prefills: list[_Prefill[Any]] = []
        self._answers: list[_Answer] = []
        self._served_by: int | None = None
        self._closed = False
        self._token_seconds = 0.0
        self.steps = self.tokens = 0
        """Steps that were made while it was served, and tokens computed in them."""

    # For the threads that want something

    def call(self, work: Callable[[], T]) -> T:
        """Do something with the engine's cells between two steps."""
        if self._alone():
            return work()
        call = _Call(work)
        self._arrive(call)
        return call.done.result()

    def prefill(
        self,
        tokens: Sequence[BatchToken],
        step: Step,
        then: Callable[[], T],
        read: Callable[[int], object] = lambda index: None,
        slice_tokens: int = SLICE,
    ) -> T:
        """Compute tokens, in slices of at most so many, and do something with the cells at once; what that returns.

        `read` gets the index in its batch of each token whose logits are kept, after the step that computed it. `step`
        may cancel between two steps; raises `ModelError`, with some of the tokens computed.
        """
        if not tokens:
            return self.call(then)
        if self._alone():
            for start in range(0, len(tokens), slice_tokens):
                part = tokens[start : start + slice_tokens]
                self._engine.decode(part)
                _read_logits(part, 0, read)
                step()
            return then()
        work = _Prefill(tokens, slice_tokens, read, then, step)
        self._arrive(work)
        return work.done.result()

    def answer(self, answering: Answering, step: Step) -> None:
        """Decode an answer, whose first token was chosen, to its end; otherwise as `prefill`."""
        if self._alone():
            while (token := answering.following) is not None:
                step()
                self._engine.decode([token])
                answering.choose(0)
        elif answering.following is not None:
            work = _Answer(answering, step)
            self._arrive(work)
            work.done.result()

    def _alone(self) -> bool:
        return self._served_by is None or self._served_by == threading.get_ident()

    def _arrive(self, work: _Prefill[Any] | _Answer | _Call[Any]) -> None:
        with self._changed:
            if self._closed:
                raise UnavailableError("the engine has stopped", hint="ask again")
            self._arrived.append(work)
            self._changed.notify()

    # The thread that runs the engine

    def serve(self) -> None:
        """Run the engine in this thread until `close`. What still waits then fails."""
        self._served_by = threading.get_ident()
        try:
            while self._next_work():
                self._step()
        finally:
            with self._changed:
                self._closed = True
            for work in (*self._arrived, *self._answers, *self._prefills):
                if not work.done.done():
                    work.done.set_exception(UnavailableError("the engine has stopped", hint="ask again"))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    @property
    def working(self) -> int:
        """How many prefills and answers are under way."""
        return len(self._prefills) + len(self._answers)

    def _next_work(self) -> bool:
        """Let in what has arrived and do what is to be done between steps, waiting where there is nothing else to do;
        false when closed."""
        while not self._closed:
            with self._changed:
                if not self._arrived and not self.working:
                    self._changed.wait()
                arrived, self._arrived = self._arrived, []
            for work in arrived:
                if isinstance(work, _Call):
                    _settle(work.done, work.work)
                elif isinstance(work, _Answer):
                    self._answers.append(work)
                else:
                    self._prefills.append(work)
            if self.working and not self._arrived:
                return True
        return False

    def _step(self) -> None:
        parts = self._compose()
        if parts:
            self._compute(parts)
        taken = {id(work) for work, _ in parts}
        self._answers = [work for work in self._answers if not work.done.done()]
        left = [work for work in self._prefills if not work.done.done()]
        # Who was not in this step is first in the next.
        self._prefills = sorted(left, key=lambda work: id(work) in taken)
        self.beat()

    def _compose(self) -> list[_Part]:
        parts: list[_Part] = [(work, work.take(1)) for work in self._answers if _is_wanted(work)]
        room = self._beside_answers() if parts else BATCH
        for work in self._prefills:
            if room and _is_wanted(work):
                parts.append((work, work.take(room)))
                room -= len(parts[-1][1])
        return parts

    def _beside_answers(self) -> int:
        """Prefill tokens of a step that keeps answers flowing, however slow the machine is."""
        if not self._token_seconds:
            return _MOST_BESIDE
        return min(_MOST_BESIDE, max(_LEAST_BESIDE, int(_STEP_SECONDS / self._token_seconds)))

    def _compute(self, parts: Sequence[_Part]) -> None:
        batch = [token for _, tokens in parts for token in tokens]
        started = perf_counter()
        try:
            self._engine.decode(batch)
        except ModelError as error:
            if len(parts) == 1:
                parts[0][0].done.set_exception(error)
                return
            # One of them asks too much; the others need not suffer for it.
            for part in parts:
                self._compute([part])
            return
        self.steps += 1
        self._observe(len(batch), perf_counter() - started)
        end = 0
        for work, tokens in parts:
            end += len(tokens)
            try:
                work.computed(len(tokens), end - 1)
            except Exception as error:  # it belongs to whoever asked for the work
                work.done.set_exception(error)
        self.tokens += end

    def _observe(self, tokens: int, seconds: float) -> None:
        """Only of steps with a prefill: a token alone takes longer."""
        if tokens >= _LEAST_BESIDE:
            former = self._token_seconds or seconds / tokens
            self._token_seconds = _FORGET * former + (1 - _FORGET) * seconds / tokens


def _is_wanted(work: _Work) -> bool:
    """Whether whoever asked for it still wants it; its future says so otherwise."""
    try:
        work.step()
    except Exception as error:  # it belongs to whoever asked for the work
        work.done.set_exception(error)
        return False
    return True


def _settle(done: Future[Any], work: Callable[[], Any]) -> None:
    try:
        done.set_result(work())
    except Exception as error:  # it belongs to whoever asked for the work
        done.set_exception(error)
