"""Random operations on the engine child's parts, by the thousand, with a tiny model: nothing leaks, nothing breaks."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kvd.engine.llama import LlamaEngine
from kvd.engine.memory import memory_in_use
from kvd.errors import CancelledError, ModelError, StoreError, UsageError
from kvd.kv.pager import Pager
from kvd.kv.policies import policy_named
from kvd.kv.pool import PAGE_TOKENS, HotPool, PoolFullError
from kvd.kv.prefetch import prefetch
from kvd.kv.store import BlockStore, StoredBlock
from kvd.kv.table import BlockTable
from kvd.worker.answerer import Answerer, Question
from kvd.worker.batcher import Batcher
from kvd.worker.bringing import Listener
from kvd.worker.decoding import HEADS, LIVE, PREFIX, SPARE, WORK, decode_run, sequences_for
from kvd.worker.layout import body_of
from kvd.worker.probe import probe
from kvd.worker.prompt import Piece, PromptBuilder
from kvd.worker.rerank import Candidates, Reranker
from kvd.worker.reuse import Reuse
from tests.fakes.tiny_models import write_tiny_model

from .test_answerer import tokens_of

N_CTX = 2048
POOL_PAGES = 90
STORE_CAP = 1_500_000
CHUNKS = 60
TABLES = 12
GROWTH = 16_000_000
"""Bytes that the process may grow by between the 1,000th operation and the last."""

_WORDS = ("class", "def", "return", "self", "session", "user", "password", "request", "value", "raise", "import", "not")


class Engine(LlamaEngine):
    """Gives llama.cpp states that are cut off, on demand, which it refuses."""

    cut = False

    def set_state(self, sequence: int, blob: npt.NDArray[np.uint8]) -> bool:
        return super().set_state(sequence, blob[:-2] if self.cut else blob)


class Soak:
    """What an engine child is made of, and one who does everything to it that a daemon does."""

    def __init__(self, engine: Engine, folder: Path, seed: int, parallel: int = 1) -> None:
        self.engine, self.random, self.counts = engine, Random(seed), Counter[str]()
        self.prompts = PromptBuilder(engine)
        movable = probe(engine, (LIVE, WORK, SPARE))
        self.shape = movable.shape
        self.writer, self.writing = BlockStore(folder / "kv.db"), threading.Lock()
        self.pool = HotPool(
            self.shape, POOL_PAGES * PAGE_TOKENS * self.shape.bytes_per_token, policy=policy_named("combined")
        )
        self.pager = Pager(self.pool, BlockStore(folder / "kv.db", readonly=True), self.shape, b"model")
        batcher = Batcher(engine)
        self.reuse = Reuse(engine, self.prompts, movable, self.pager, batcher=batcher)
        decode_run(engine, self.prompts.prefix, 0, PREFIX, lambda: None)
        self.answerer = Answerer(engine, self.prompts, self.reuse, 0, parallel=parallel, batcher=batcher)
        self.reranker = Reranker(self.answerer, self.reuse)
        self.pieces = [self._piece(number) for number in range(CHUNKS)]
        self.asked = self.pieces[:1]
        self.tables: list[BlockTable] = []
        self.stored: dict[bytes, StoredBlock] = {}
        self.operations: dict[Callable[[], None], int] = {
            self.ask: 50,
            self.cancel: 15,
            self.close: 8,
            self.damage: 8,
            self.refuse: 4,
            self.talk: 10,
            self.guess: 4,
            self.judge: 3,
            self.change: 4,
        }

    def _piece(self, number: int) -> Piece:
        # Every sixth is a copy of the one before it under another path.
        content = number - (number % 6 == 5)
        text = Random(content)
        body = self.prompts.body(" ".join(text.choices(_WORDS, k=text.randint(8, 90))))
        vector = np.random.default_rng(content).standard_normal(8).astype(np.float32)
        return Piece(0, f"src/file{number}.py", 1, 9, f"scope{content % 3}", body, vector / np.linalg.norm(vector))

    # Operations

    def ask(self, **listener: Any) -> None:
        """About random chunks, or about some of those that were asked about last and others behind them."""
        random = self.random
        kept = self.asked[: random.randint(1, len(self.asked))] if random.random() < 0.4 else []
        others = [piece for piece in self.pieces if piece not in kept]
        self.asked = [*kept, *random.sample(others, random.randint(0 if kept else 1, 6))]
        pieces = [dataclasses.replace(piece, index=index) for index, piece in enumerate(self.asked)]
        question = Question(
            "how is the password of the user " + random.choice(_WORDS),
            pieces,
            random.choice((64, 200, 400, 900)),
            random.randint(1, 6),
            random.random() < 0.95,
            random.choice(pieces).vector,
        )
        try:
            tokens = tokens_of(self.answerer.answer(question, dataclasses.replace(self.listener(), **listener)))
        except UsageError:
            self.counts["refused"] += 1
        except CancelledError:
            self.counts["cancelled"] += 1
        else:
            self.counts.update({"answered": 1, **tokens})
        with self.reuse.lock:
            used = self.pager.take_used()
        if used:
            with self.writing:
                self.writer.touch(list(used))

    def listener(self) -> Listener:
        return Listener(
            lambda progress: None,
            lambda text: None,
            self._keep,
            lambda damaged: self._drop(damaged.key),
            lambda: None,
        )

    def _keep(self, blocks: list[StoredBlock]) -> None:
        try:
            with self.writing:
                self.writer.put(blocks, STORE_CAP)
        except StoreError:
            self.counts["lost"] += 1
        else:
            self.stored |= {block.key: block for block in blocks}

    def _drop(self, key: bytes) -> None:
        self.counts["dropped"] += 1
        with self.writing:
            self.writer.drop([key])

    def cancel(self) -> None:
        """Stop an answer at its n-th step."""
        self.ask(step=_patience(self.random.randint(0, 12)))

    def close(self) -> None:
        """The asker goes away: a piece of the answer, progress or blocks can't be delivered any more."""
        event = self.random.choice(("token", "progress", "blocks"))
        self.ask(**{event: _patience(self.random.randint(0, 2))})

    def damage(self) -> None:
        """Change a byte of a stored block."""
        block = self.random.choice(list(self.stored.values())) if self.stored else None
        if block is not None and self.writer.get([block.key], block.fingerprint):
            place = self.random.randrange(len(block.data))
            data = block.data[:place] + bytes([block.data[place] ^ 0xFF]) + block.data[place + 1 :]
            self.writer.put([dataclasses.replace(block, data=data)])
            self.counts["damaged"] += 1

    def refuse(self) -> None:
        """llama.cpp refuses the state of the next prompt, which is then computed."""
        self.engine.cut = True
        try:
            self.ask()
        finally:
            self.engine.cut = False

    def talk(self) -> None:
        """A sequence begins, goes on, forks or ends."""
        table = self.random.choice(self.tables) if self.tables else None
        what = self.random.random()
        if table is None or (what < 0.25 and len(self.tables) < TABLES):
            self.tables.append(BlockTable(self.pager, (self.random.randrange(3),)))
        elif what < 0.45 and len(self.tables) < TABLES:
            self.tables.append(table.fork())
        elif what < 0.6:
            self.tables.remove(table)
            table.close()
        else:
            tokens = [self.random.randrange(9) for _ in range(self.random.randint(1, 200))]
            seeded = torch.Generator().manual_seed(len(tokens))
            kv = torch.randn((self.shape.n_layer, 2, len(tokens), self.shape.width), generator=seeded).half()
            try:
                self._keep(table.append(tokens, kv))
            except PoolFullError:
                self.counts["full"] += 1

    def guess(self) -> None:
        """One of three who type brings in what a question may want, or has gone."""
        client, few = self.random.randrange(3), self.random.sample(self.pieces, self.random.randrange(4))
        patience = iter(range(self.random.randrange(20)))
        bodies = [body_of(piece, self.prompts) for piece in few]
        with self.reuse.lock:
            found = prefetch(self.pager, bodies, client, lambda: next(patience, None) is None)
            damaged = self.pager.take_damaged()
        self.counts["guessed"] += found.loaded
        for block in damaged:
            self._drop(block.key)

    def judge(self) -> None:
        """The model is asked about candidates, by one who may go away."""
        few = self.random.sample(self.pieces, self.random.randint(2, 8))
        pieces = [dataclasses.replace(piece, index=index) for index, piece in enumerate(few)]
        step = _patience(self.random.choice((2, 5, 1000)))
        listener = dataclasses.replace(self.listener(), step=step)
        try:
            judged = self.reranker.judge(Candidates("where is the user's password", pieces, 60.0), listener)
        except CancelledError:
            self.counts["cancelled"] += 1
        else:
            self.counts["judged"] += sum(gain is not None for gain in judged.gains)

    def change(self) -> None:
        self.answerer.recompute = self.random.choice((0, 4))

    # Checks

    def check(self) -> None:
        """Between operations only tables pin blocks, and no sequence has cells but prefix and resident prompts."""
        self.pool.check_integrity()
        self.answerer.resident.check_integrity()
        pins = Counter(id(block) for table in self.tables for block in table.blocks)
        assert all(block.pins == pins[id(block)] for block in self.pool.blocks())
        assert all(self.engine.last_position(sequence) == -1 for sequence in (LIVE, WORK, SPARE, *HEADS))
        assert self.engine.last_position(PREFIX) == len(self.prompts.prefix) - 1

    def run(self, operations: int, every: int) -> Iterator[int]:
        """Bytes of the process, each time that so many operations are done."""
        choices = self.random.choices(list(self.operations), list(self.operations.values()), k=operations)
        for count, operation in enumerate(choices, start=1):
            operation()
            self.check()
            if count % every == 0:
                yield memory_in_use()["host"]

    def drop_everything(self) -> None:
        """Give back all that is kept on purpose."""
        while self.tables:
            self.tables.pop().close()
        self.answerer.resident.clear()
        for key in list(self.pool.policy.victims()):
            self.pool.discard(key)
        self.check()


def _patience(calls: int) -> Callable[..., None]:
    """Puts up with so many calls, then cancels."""
    left = iter(range(calls))

    def call(*event: object) -> None:
        if next(left, None) is None:
            raise CancelledError("cancelled")

    return call


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(write_tiny_model(tmp_path / "tiny.gguf", "llama"), N_CTX, threads=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield engine
    torch.set_num_threads(threads)
    engine.close()


def soaked(engine: Engine, folder: Path, operations: int, every: int) -> tuple[Soak, list[int]]:
    """Do so many operations and give everything back: all is as it was before."""
    soak = Soak(engine, folder, seed=1)
    body = body_of(soak.pieces[0], soak.prompts)
    prefix, kv = engine.get_state(PREFIX), soak.reuse.prefill(body, lambda: None)
    sizes = list(soak.run(operations, every))
    soak.drop_everything()
    stats = soak.pool.stats()
    assert (stats["used_bytes"], stats["blocks"], stats["tokens"]) == (0, 0, 0)
    assert soak.answerer.resident.stats() == {
        "total": N_CTX,
        "prefix": len(soak.prompts.prefix),
        "resident": 0,
        "prompts": 0,
        "runs": 0,
    }
    assert np.array_equal(engine.get_state(PREFIX), prefix)
    assert torch.allclose(soak.reuse.prefill(body, lambda: None), kv, atol=0.05)
    assert_all_cells_are_free(engine, len(soak.prompts.prefix))
    print(f"{operations} operations: {dict(soak.counts)}, {dict(soak.pager.counts)}, {soak.pool.evictions} evictions")
    return soak, sizes


def assert_all_cells_are_free(engine: Engine, prefix: int) -> None:
    """All but the prefix's can be filled, and not one more."""
    decode_run(engine, [5] * (N_CTX - prefix), 0, WORK, lambda: None)
    with pytest.raises(ModelError, match="no room"):
        decode_run(engine, [5], N_CTX - prefix, WORK, lambda: None)
    engine.clear((WORK,))


def test_after_random_operations_all_is_as_it_was(engine: Engine, tmp_path: Path) -> None:
    soak, _ = soaked(engine, tmp_path, 200, 200)
    assert soak.pool.evictions
    happened = ("answered", "cancelled", "refused", "resident", "reused_hot", "reused_cold", "recomputed", "prefilled")
    assert all(soak.counts[name] for name in happened), soak.counts


def test_after_many_at_the_same_time_all_is_as_it_was(tmp_path: Path) -> None:
    """Ten who ask, judge, type and leave, with room for four."""
    engine = Engine(write_tiny_model(tmp_path / "tiny.gguf", "llama"), N_CTX, threads=1, sequences=sequences_for(4))
    soak = Soak(engine, tmp_path, seed=2, parallel=4)
    answering = threading.Thread(target=soak.answerer.batcher.serve)
    answering.start()

    def work(number: int) -> None:
        own = Random(number)
        for _ in range(20):
            own.choices((soak.ask, soak.cancel, soak.close, soak.judge, soak.guess), (8, 3, 2, 1, 1))[0]()

    try:
        with ThreadPoolExecutor(10) as threads:
            for future in [threads.submit(work, number) for number in range(10)]:
                future.result(300)
        soak.answerer.check_integrity()
    finally:
        soak.answerer.batcher.close()
        answering.join(30)
    assert {block.pins for block in soak.pool.blocks()} <= {0}
    assert all(soak.counts[name] for name in ("answered", "cancelled", "resident", "reused_hot", "judged")), soak.counts
    with_prefix = [engine.last_position(sequence) for sequence in (LIVE, WORK, SPARE, *HEADS, *range(28, 37))]
    assert set(with_prefix) == {-1}
    engine.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_after_ten_thousand_operations_all_is_as_it_was(engine: Engine, tmp_path: Path) -> None:
    soak, sizes = soaked(engine, tmp_path, 10_000, 1000)
    print("MB after each 1,000: " + ", ".join(f"{size / 1e6:.1f}" for size in sizes))
    assert all(soak.counts[name] for name in ("dropped", "full", "guessed")), soak.counts
    assert max(sizes[1:]) - sizes[0] < GROWTH
