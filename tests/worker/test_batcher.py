"""Many questions at once on the real small model."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kvd.engine.llama import LlamaEngine, run
from kvd.errors import CancelledError, ModelError, UnavailableError
from kvd.kv.pager import Pager
from kvd.kv.pool import HotPool, pool_bytes_for
from kvd.kv.store import BlockStore
from kvd.worker.answerer import Answerer, Question
from kvd.worker.batcher import Batcher, nothing
from kvd.worker.decoding import LIVE, PREFIX, WORK, sequences_for
from kvd.worker.gate import divergence
from kvd.worker.probe import Movable
from kvd.worker.prompt import PromptBuilder
from kvd.worker.rerank import Candidates, Reranker
from kvd.worker.reuse import Reuse, fingerprint

from .conftest import Rig, model_path, with_prefix_alone

PARALLEL, CELLS = 4, 4096
QUESTIONS = ("How is a password checked?", "When is a call tried again?", "Where is the session kept?", "Who logs in?")


@pytest.fixture(scope="module")
def wide() -> Iterator[LlamaEngine]:
    engine = LlamaEngine(model_path(), CELLS, sequences=sequences_for(PARALLEL))
    yield engine
    engine.close()


class WideRig(Rig):
    """A rig whose engine answers several questions at a time once `served`."""

    @contextmanager
    def served(self) -> Iterator[ThreadPoolExecutor]:
        """Threads for questions, with one that runs the engine. All are gone afterwards."""
        batcher = self.answerer.batcher
        engine = threading.Thread(target=batcher.serve)
        engine.start()
        try:
            with ThreadPoolExecutor(8) as threads:
                yield threads
        finally:
            batcher.close()
            engine.join(30)
            assert not engine.is_alive()

    def ask(self, question: str, max_tokens: int = 12, step: Callable[[], None] = lambda: None) -> dict[str, object]:
        listener = dataclasses.replace(self.listener(), step=step)
        return self.answerer.answer(Question(question, self.pieces(), 600, max_tokens), listener)


@pytest.fixture
def rig(wide: LlamaEngine, movable: Movable, tmp_path: Path) -> WideRig:
    prompts, shape = PromptBuilder(wide), movable.shape
    pool, store = HotPool(shape, pool_bytes_for(shape, CELLS, 0)), BlockStore(tmp_path / "kv.db")
    pager = Pager(pool, store, shape, fingerprint("model", movable, prompts))
    batcher = Batcher(wide)
    reuse = Reuse(wide, prompts, movable, pager, batcher=batcher)
    wide.clear(range(1, wide.sequences))
    with_prefix_alone(wide, prompts)
    return WideRig(Answerer(wide, prompts, reuse, 0, True, 0, PARALLEL, batcher), pager, pool, store)


def all_free(rig: WideRig, engine: LlamaEngine) -> bool:
    """No sequence has cells but the prefix, no block is pinned."""
    rig.answerer.check_integrity()
    pinned = any(block.pins for block in rig.pool.blocks())
    return not pinned and all(engine.last_position(sequence) == -1 for sequence in range(1, engine.sequences))


def test_questions_at_the_same_time_get_the_answers_that_each_gets_alone(rig: WideRig, wide: LlamaEngine) -> None:
    """Other batch shapes only round differently, see `kvd bench kv` (full prefill, other batches)."""
    first = rig.ask(QUESTIONS[0])["answer"]
    alone = [rig.ask(question)["answer"] for question in QUESTIONS]
    assert alone[0] == first
    with rig.served() as threads:
        together = [future.result(60)["answer"] for future in [threads.submit(rig.ask, text) for text in QUESTIONS]]
        # They shared steps: one after the other each answer takes 12 and a prefill.
        assert rig.answerer.batcher.steps < 4 * 13
        assert all_free(rig, wide)
    assert sum(a == b for a, b in zip(alone, together, strict=True)) >= 3, (alone, together)


def test_a_question_without_code_is_answered_too(rig: WideRig, wide: LlamaEngine) -> None:
    with rig.served():
        result = rig.answerer.answer(Question("Say: yes.", [], 600, 5), rig.listener())
        assert result["answer"]
        assert all_free(rig, wide)


def test_logits_among_other_sequences_are_those_of_a_sequence_alone(rig: WideRig, wide: LlamaEngine) -> None:
    tokens = rig.answerer.prompts.body("def area(self):\n    return self.side**2\n") * 4
    others = rig.answerer.prompts.body("the quick brown fox jumps over the lazy dog\n") * 12
    start = len(rig.answerer.prompts.prefix)
    rows: list[np.ndarray] = []

    def compute(text: tuple[int, ...], sequence: int, keep: bool) -> None:
        rig.answerer.batcher.call(lambda: wide.share(PREFIX, sequence))
        read = (lambda index: rows.append(wide.logits(index))) if keep else (lambda index: None)
        batch = run(text, start, sequence, logits=True)
        rig.answerer.batcher.prefill(batch, lambda: None, lambda: wide.remove(sequence), read)

    compute(tokens, LIVE, keep=True)
    with rig.served() as threads:
        futures = [threads.submit(compute, others, WORK, False), threads.submit(compute, tokens, LIVE, True)]
        for future in futures:
            future.result(60)
        assert all_free(rig, wide)
    alone, among = (row[np.newaxis] for row in rows)
    assert float(divergence(alone, among)[0]) < 0.01


def test_an_answer_goes_on_while_a_long_prompt_is_computed(rig: WideRig, wide: LlamaEngine) -> None:
    rig.ask(QUESTIONS[0])
    long = run([5] * 1500, 0, WORK)
    answering = threading.Event()
    computed = threading.Event()
    during: list[str] = []

    def note(text: str) -> None:
        answering.set()
        if not computed.is_set():
            during.append(text)

    def ask() -> dict[str, object]:
        listener = dataclasses.replace(rig.listener(), token=note)
        return rig.answerer.answer(Question(QUESTIONS[0], rig.pieces(), 600, 200), listener)

    with rig.served() as threads:
        answer = threads.submit(ask)
        assert answering.wait(30)
        rig.answerer.batcher.prefill(long, lambda: None, computed.set)
        rig.answerer.batcher.call(lambda: wide.remove(WORK))
        answer.result(60)
    # A step has 64 tokens of the long prompt and one of the answer, which may end before.
    assert len(during) >= 10


def test_code_that_several_need_is_computed_once(rig: WideRig, wide: LlamaEngine) -> None:
    with rig.served() as threads:
        futures = [threads.submit(rig.ask, question, 2) for question in QUESTIONS]
        tokens = [future.result(120)["tokens"] for future in futures]
        assert all_free(rig, wide)
    bodies = sum(len(piece.body) for piece in rig.pieces())
    assert sum(item["prefilled"] for item in tokens) == bodies  # type: ignore[index]  # a dict of numbers
    assert sum(item["reused_hot"] for item in tokens) == 3 * bodies  # type: ignore[index]  # a dict of numbers
    assert len(rig.written) == len({block.key for block in rig.written})


def test_cancelling_stops_one_and_leaves_the_others(rig: WideRig, wide: LlamaEngine) -> None:
    rig.ask(QUESTIONS[0])
    gone = threading.Event()

    def step() -> None:
        if gone.is_set():
            raise CancelledError("cancelled")

    with rig.served() as threads:
        left = threads.submit(rig.ask, QUESTIONS[1], 500, step)
        stays = threads.submit(rig.ask, QUESTIONS[0], 12)
        gone.set()
        with pytest.raises(CancelledError):
            left.result(30)
        assert stays.result(30)["answer"]
        assert all_free(rig, wide)


def test_prompts_wait_for_room_in_the_order_in_which_they_came(rig: WideRig, wide: LlamaEngine) -> None:
    admission, resident = rig.answerer.admission, rig.answerer.resident
    order: list[str] = []

    def enter(name: str, cells: int) -> None:
        live = admission.enter([], cells, lambda: None)
        order.append(name)
        admission.leave(live)

    def waiting(count: int) -> None:
        with admission._changed:
            assert admission._changed.wait_for(lambda: len(admission._waiting) == count, 10)

    with rig.served() as threads:
        first = admission.enter([], resident.capacity - 100, lambda: None)
        large = threads.submit(enter, "large", 200)
        waiting(1)
        small = threads.submit(enter, "small", 50)
        waiting(2)
        assert order == []
        admission.leave(first)
        for future in (large, small):
            future.result(10)
    assert order == ["large", "small"]
    assert resident.free_cells == resident.capacity


def test_a_judgement_for_which_there_is_no_room_in_time_is_none(rig: WideRig) -> None:
    assert rig.answerer.reuse is not None
    reranker = Reranker(rig.answerer, rig.answerer.reuse)
    with rig.served():
        live = rig.answerer.admission.enter([], rig.answerer.resident.capacity, lambda: None)
        judged = reranker.judge(Candidates(QUESTIONS[0], rig.pieces(), 0.2), rig.listener())
        assert judged.gains == [None] * 3
        rig.answerer.admission.leave(live)
        assert None not in reranker.judge(Candidates(QUESTIONS[0], rig.pieces(), 600.0), rig.listener()).gains


def test_a_prompt_that_waits_can_be_cancelled(rig: WideRig) -> None:
    admission, gone = rig.answerer.admission, threading.Event()

    def step() -> None:
        if gone.is_set():
            raise CancelledError("cancelled")

    with rig.served() as threads:
        live = admission.enter([], rig.answerer.resident.capacity, lambda: None)
        waits = threads.submit(admission.enter, [], 10, step)
        gone.set()
        with pytest.raises(CancelledError):
            waits.result(10)
        admission.leave(live)
        admission.leave(admission.enter([], 10, lambda: None))


def test_work_that_fails_is_no_fault_of_work_in_the_same_step(rig: WideRig, wide: LlamaEngine) -> None:
    batcher, start = rig.answerer.batcher, len(rig.answerer.prompts.prefix)
    both = threading.Event()

    def prefill(tokens: int, first: int, sequence: int) -> None:
        batcher.call(lambda: wide.share(PREFIX, sequence))
        batcher.prefill(run([5] * tokens, first, sequence), lambda: None, nothing)

    with rig.served() as threads:
        # Nothing is computed before both are there.
        held: Future[object] = threads.submit(batcher.call, lambda: both.wait(10))
        good = threads.submit(prefill, 40, start, LIVE)
        # A hole between a sequence's tokens is refused, not to be confused with what fits.
        bad = threads.submit(prefill, 40, 3, WORK)
        both.set()
        held.result(10)
        good.result(30)
        with pytest.raises(ModelError):
            bad.result(30)
        assert batcher.call(lambda: wide.last_position(LIVE)) == start + 39
        batcher.call(lambda: wide.clear((LIVE, WORK)))
        assert all_free(rig, wide)


def test_what_still_waits_at_the_end_fails(rig: WideRig) -> None:
    batcher = rig.answerer.batcher
    rig.ask(QUESTIONS[0])
    with rig.served() as threads:
        asked = threads.submit(rig.ask, QUESTIONS[0], 500)
        batcher.call(nothing)
        batcher.close()
        with pytest.raises(UnavailableError, match="stopped"):
            asked.result(30)
    with pytest.raises(UnavailableError, match="stopped"):
        batcher.call(nothing)
