"""Reused KV in a prompt: bodies from the pager, moved to where they stand, their headers computed in place."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

import llama_cpp
import numpy as np
import numpy.typing as npt
import torch

from kvd.engine.llama import BATCH, LlamaEngine, run
from kvd.engine.state import SequenceState, StateBuffer, parse_state, state_bytes
from kvd.errors import ModelError
from kvd.kv.codec import DEFAULT, BlockError, Codec
from kvd.kv.pager import Body, Fetched, Pager
from kvd.kv.rope import Rotation
from kvd.kv.rows import Rows, host_memory
from kvd.kv.spans import Spans
from kvd.kv.store import StoredBlock
from kvd.types import KVShape
from kvd.worker.batcher import Batcher
from kvd.worker.decoding import FIRST, HEAD_BATCH, HEADS, LOOK_SECONDS, PREFIX, Slot, Step
from kvd.worker.layout import Placed
from kvd.worker.probe import Movable
from kvd.worker.prompt import PromptBuilder


def fingerprint(model_sha256: str, movable: Movable, prompts: PromptBuilder, codec: Codec = DEFAULT) -> bytes:
    """Everything that decides whether stored KV is this model's: content, build, codec, what went before it."""
    parts = (
        model_sha256,
        llama_cpp.__version__,
        codec.id,
        [movable.shape.n_layer, movable.shape.width],
        [movable.rope.pairing, *movable.rope.frequencies],
        prompts.prefix,
    )
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=32).digest()


def token_key(model_sha256: str, prompts: PromptBuilder) -> str:
    """Everything that decides a prompt's tokens: content, build, and what goes before it."""
    parts = (model_sha256, llama_cpp.__version__, prompts.prefix)
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def usual_prompt(n_ctx: int) -> int:
    """Tokens of the bodies in a usual prompt; memory for them is taken when a model is loaded."""
    return n_ctx // 4


class Reuse:
    """Makes, keeps and places bodies' KV for one engine, for several threads: what is done with cells goes through
    `batcher`, and whoever uses `pager` holds `lock`. Reading, decompressing and dequantizing goes on beside the engine.

    Keys are rotated where the pager's pool is. `pinned`: a GPU copies from and to the states that are built.
    """

    def __init__(
        self,
        engine: LlamaEngine,
        prompts: PromptBuilder,
        movable: Movable,
        pager: Pager,
        pinned: bool = False,
        batcher: Batcher | None = None,
    ) -> None:
        self._engine, self._prompts, self.pager, self._pinned = engine, prompts, pager, pinned
        self._batcher = batcher or Batcher(engine)
        self.lock = threading.RLock()
        self._made = threading.Condition(self.lock)
        self._making: set[Body] = set()
        self.shape: KVShape = movable.shape
        self._device = pager.pool.device
        self._rotation = Rotation(movable.rope, self._device)
        self._heads = list(HEADS)
        """Sequences for heads that nobody uses now; for the thread that runs the engine."""
        # Memory for a usual prompt, taken now rather than while somebody waits.
        usual = usual_prompt(engine.n_ctx)
        self._memory = host_memory(state_bytes(self.shape, usual), pinned)
        self._memory.fill(0)
        pager.rehearse(usual)

    def claim(self, body: Body, step: Step) -> bool:
        """Whether this thread is the one to make a body, until it calls `disclaim`.

        Where another one makes it, false when that has ended; `step` may cancel the wait.
        """
        with self._made:
            if body not in self._making:
                self._making.add(body)
                return True
            while body in self._making:
                self._made.wait(LOOK_SECONDS)
                step()
            return False

    def disclaim(self, body: Body) -> None:
        with self._made:
            self._making.discard(body)
            self._made.notify_all()

    def compute(self, body: Body, step: Step, slot: Slot = FIRST) -> tuple[Fetched, list[StoredBlock]]:
        """Prefill a body and store it; `step` may cancel."""
        started = perf_counter()
        kv = self.prefill(body, step, slot)
        with self.lock:
            try:
                fetched, frames = self.pager.add(body, kv)
            except BlockError as error:
                raise ModelError(f"what the model computed can't be kept: {error}", hint="kvd setup --list") from error
            seconds = perf_counter() - started
            self.pager.costs.prefill.observe(len(body.tokens), seconds)
        rate = seconds / len(body.tokens)
        return fetched, [replace(frame, seconds=frame.tokens * rate) for frame in frames]

    def prefill(self, body: Body, step: Step, slot: Slot = FIRST) -> torch.Tensor:
        """A body's KV behind the shared prefix and its head: `[n_layer, 2, tokens, width]`, keys at position 0."""
        engine, count = self._engine, len(body.tokens)
        start = len(self._prompts.prefix)
        body_start = start + len(body.head)

        def take() -> npt.NDArray[np.uint8]:
            engine.share(slot.work, slot.spare, body_start)
            blob = engine.get_state(slot.spare)
            engine.clear((slot.work, slot.spare))
            return blob

        self._batcher.call(lambda: engine.share(PREFIX, slot.work))
        state = parse_state(self._batcher.prefill(run([*body.head, *body.tokens], start, slot.work), step, take))
        if state.positions.tolist() != list(range(body_start, body_start + count)):
            raise ModelError("llama.cpp gave back other cells than were computed", hint="kvd logs")
        return self.at_position_0(state)

    def at_position_0(self, state: SequenceState) -> torch.Tensor:
        """The KV of cells as it is stored: `[n_layer, 2, cells, width]`, where the pool is."""
        angles = self._rotation.angles(-torch.from_numpy(state.positions.astype(np.int64)))
        shape = (self.shape.n_layer, 2, len(state.positions), self.shape.width)
        kv = torch.empty(shape, dtype=torch.float16, device=self._device)
        for layer in range(self.shape.n_layer):
            self._rotation.rotate(torch.from_numpy(state.keys[layer]).to(self._device), angles, kv[layer, 0])
            kv[layer, 1] = torch.from_numpy(state.values[layer])
        return kv

    def set_bodies(
        self,
        placed: Sequence[Placed],
        resident: Sequence[Placed] = (),
        slot: Slot = FIRST,
        spans: Spans | None = None,
        start: int = 0,
    ) -> bool:
        """Put all bodies at their places in the spare sequence, behind what stands before them; False if llama.cpp
        refuses.

        Before them stand the prefix, what the live sequence holds of a conversation up to `start`, and `resident`
        chunks, which it holds too. `spans` gets the time of "rotate" and "set".
        """
        positions = [position for item in placed for position in range(item.end - len(item.body.tokens), item.end)]

        def rows() -> Rows:
            return self.pager.rows([item.stored for item in placed])

        def then() -> None:
            self._engine.share(PREFIX, slot.spare)
            if start:
                self._engine.share(slot.live, slot.spare, len(self._prompts.prefix), start)
            for item in resident:
                self._engine.share(slot.live, slot.spare, item.stored_start, item.end)

        return self.set_rows(rows, positions, slot, spans or Spans(), then)

    def set_rows(
        self, rows: Callable[[], Rows], positions: Sequence[int], slot: Slot, spans: Spans, then: Callable[[], None]
    ) -> bool:
        """Fill the spare sequence with these rows of the pool, keys rotated to `positions`, and do something with the
        cells at once; False, and nothing done, if llama.cpp refuses."""
        with self.lock:
            if (size := state_bytes(self.shape, len(positions))) > self._memory.size:
                self._memory = host_memory(size, self._pinned)
            buffer = StateBuffer(self.shape, positions, slot.spare, self._memory)
            with spans.measure("rotate"):
                rows().write(self._rotation, positions, buffer.layers())

            def put() -> bool:
                with spans.measure("set"):
                    if not self._engine.set_state(slot.spare, buffer.blob):
                        return False
                then()
                return True

            return self._batcher.call(put)

    def join(self, placed: Sequence[Placed], step: Step, slot: Slot = FIRST) -> None:
        """Compute the chunks' heads in place and put them and the rest of the bodies into the live sequence, behind the
        prefix and what it holds of the prompt already.

        Heads are computed many to a batch, each in a sequence that shares the prefix and the stored bodies before
        it. They do not see one another; in small trials that cost little as long as they see the stored bodies from
        their first token on, and one large batch is much faster than many small ones.
        """
        for group in _head_groups(placed):
            while group:
                joined = self._join_some(group, placed[-1], step, slot)
                group = group[joined:]

    def _join_some(self, group: Sequence[Placed], last: Placed, step: Step, slot: Slot) -> int:
        """Join as many of the chunks as there are sequences for their heads, at least one; how many that is.

        After the `last` one the spare sequence is given up.
        """
        engine = self._engine

        def take() -> list[int]:
            sequences = self._take_heads(len(group), slot)
            engine.share(PREFIX, slot.live)
            for sequence, item in zip(sequences, group, strict=False):
                engine.share(slot.spare, sequence, 0, item.start)
            return sequences

        def put() -> None:
            for sequence, item in zip(sequences, part, strict=True):
                engine.share(sequence, slot.live, item.start, item.stored_start)
                engine.share(slot.spare, slot.live, item.stored_start, item.end)
            self._give_heads(sequences)
            if part[-1] is last:
                engine.remove(slot.spare)

        sequences = self._batcher.call(take)
        part = group[: len(sequences)]
        heads = [
            token
            for sequence, item in zip(sequences, part, strict=True)
            for token in run(item.fresh, item.start, sequence)
        ]
        try:
            self._batcher.prefill(heads, step, put, slice_tokens=BATCH)
        except BaseException:
            self._batcher.call(lambda: self._give_heads(sequences))
            raise
        return len(part)

    @contextmanager
    def heads(self, most: int, slot: Slot) -> Iterator[list[int]]:
        """Sequences for the heads of so many chunks, or as many as there are, at least one; empty, also afterwards."""
        sequences = self._batcher.call(lambda: self._take_heads(most, slot))
        try:
            yield sequences
        finally:
            self._batcher.call(lambda: self._give_heads(sequences))

    def _take_heads(self, most: int, slot: Slot) -> list[int]:
        """Sequences for so many heads, or as many as there are; the one that the slot has itself is the first."""
        taken, self._heads = self._heads[: most - 1], self._heads[most - 1 :]
        return [slot.work, *taken]

    def _give_heads(self, sequences: Sequence[int]) -> None:
        self._engine.clear(sequences)
        self._heads = sorted([*self._heads, *sequences[1:]])


def _head_groups(placed: Sequence[Placed]) -> Iterator[list[Placed]]:
    """Cut into groups with a sequence for each head, small enough to be cancelled between."""
    group: list[Placed] = []
    for item in placed:
        if len(group) == len(HEADS) or sum(len(other.fresh) for other in [*group, item]) > HEAD_BATCH:
            yield group
            group = []
        group.append(item)
    yield group
