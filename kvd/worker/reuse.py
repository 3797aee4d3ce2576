"""Reused KV in a prompt: bodies from the pager, moved to where they stand, their headers computed in place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import llama_cpp
import numpy as np
import torch

from kvd.engine.llama import BatchToken, LlamaEngine, run
from kvd.engine.state import StateBuffer, parse_state, state_bytes
from kvd.errors import ModelError
from kvd.kv.codec import DEFAULT, BlockError, Codec
from kvd.kv.pager import Body, Fetched, Pager
from kvd.kv.rope import Rotation
from kvd.kv.rows import host_memory
from kvd.kv.store import StoredBlock
from kvd.types import KVShape
from kvd.worker.decoding import HEAD_BATCH, HEADS, LIVE, PREFIX, SPARE, WORK, Step, decode_run
from kvd.worker.probe import Movable
from kvd.worker.prompt import Piece, PromptBuilder


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


def usual_prompt(n_ctx: int) -> int:
    """Tokens of the bodies in a usual prompt; memory for them is taken when a model is loaded."""
    return n_ctx // 4


@dataclass(frozen=True, slots=True)
class Placed:
    """A chunk's place in the prompt: its header's tokens from `start` on, then its body.

    The first `recompute` tokens of the body are computed in place, the others are taken from `stored`. A `resident`
    one is in the live sequence's cells already.
    """

    header: tuple[int, ...]
    body: Body
    start: int
    recompute: int
    stored: Fetched = field(default_factory=Fetched)
    resident: bool = False

    @property
    def stored_start(self) -> int:
        return self.start + len(self.header) + self.recompute

    @property
    def end(self) -> int:
        return self.start + len(self.header) + len(self.body.tokens)

    @property
    def fresh(self) -> list[int]:
        return [*self.header, *self.body.tokens[: self.recompute]]


def body_of(piece: Piece, prompts: PromptBuilder) -> Body:
    """What is stored of a piece: its body, made behind a header that gives its scope."""
    return Body(prompts.neutral_header(piece.scope), piece.body, piece.vector)


def place(start: int, headers: Sequence[Sequence[int]], bodies: Sequence[Body], recompute: int) -> list[Placed]:
    """One chunk behind the other from position `start` on, nothing stored yet."""
    placed: list[Placed] = []
    for header, body in zip(headers, bodies, strict=True):
        placed.append(Placed(tuple(header), body, start, min(recompute, len(body.tokens))))
        start = placed[-1].end
    return placed


def filled(placed: Sequence[Placed], stored: Sequence[Fetched]) -> list[Placed]:
    """The chunks with what is stored of their bodies."""
    return [replace(item, stored=fetched) for item, fetched in zip(placed, stored, strict=True)]


class Reuse:
    """Makes, keeps and places bodies' KV for one engine.

    Keys are rotated where the pager's pool is. `pinned`: a GPU copies from and to the states that are built.
    """

    def __init__(
        self, engine: LlamaEngine, prompts: PromptBuilder, movable: Movable, pager: Pager, pinned: bool = False
    ) -> None:
        self._engine, self._prompts, self.pager, self._pinned = engine, prompts, pager, pinned
        self.shape: KVShape = movable.shape
        self._device = pager.pool.device
        self._rotation = Rotation(movable.rope, self._device)
        # Memory for a usual prompt, taken now rather than while somebody waits.
        usual = usual_prompt(engine.n_ctx)
        self._memory = host_memory(state_bytes(self.shape, usual), pinned)
        self._memory.fill(0)
        pager.rehearse(usual)

    def compute(self, body: Body, step: Step) -> tuple[Fetched, list[StoredBlock]]:
        """Prefill a body and store it; `step` may cancel."""
        started = perf_counter()
        try:
            fetched, frames = self.pager.add(body, self.prefill(body, step))
        except BlockError as error:
            raise ModelError(f"what the model computed can't be kept: {error}", hint="kvd setup --list") from error
        seconds = perf_counter() - started
        self.pager.costs.prefill.observe(len(body.tokens), seconds)
        rate = seconds / len(body.tokens)
        return fetched, [replace(frame, seconds=frame.tokens * rate) for frame in frames]

    def prefill(self, body: Body, step: Step) -> torch.Tensor:
        """A body's KV behind the shared prefix and its head: `[n_layer, 2, tokens, width]`, keys at position 0."""
        engine, count = self._engine, len(body.tokens)
        start = len(self._prompts.prefix)
        body_start = start + len(body.head)
        engine.share(PREFIX, WORK)
        decode_run(engine, [*body.head, *body.tokens], start, WORK, step)
        engine.share(WORK, SPARE, body_start)
        state = parse_state(engine.get_state(SPARE))
        engine.clear((WORK, SPARE))
        if state.positions.tolist() != list(range(body_start, body_start + count)):
            raise ModelError("llama.cpp gave back other cells than were computed", hint="kvd logs")
        angles = self._rotation.angles(-torch.from_numpy(state.positions.astype(np.int64)))
        kv = torch.empty((self.shape.n_layer, 2, count, self.shape.width), dtype=torch.float16, device=self._device)
        for layer in range(self.shape.n_layer):
            self._rotation.rotate(torch.from_numpy(state.keys[layer]).to(self._device), angles, kv[layer, 0])
            kv[layer, 1] = torch.from_numpy(state.values[layer])
        return kv

    def set_bodies(self, placed: Sequence[Placed], resident: Sequence[Placed] = ()) -> bool:
        """Put all bodies at their places behind the prefix, in the spare sequence; False if llama.cpp refuses.

        `resident` are chunks before them that the live sequence holds already.
        """
        positions = [position for item in placed for position in range(item.end - len(item.body.tokens), item.end)]
        if (size := state_bytes(self.shape, len(positions))) > self._memory.size:
            self._memory = host_memory(size, self._pinned)
        buffer = StateBuffer(self.shape, positions, SPARE, self._memory)
        with self.pager.spans.measure("rotate"):
            rows = self.pager.rows([item.stored for item in placed])
            rows.write(self._rotation, positions, buffer.layers())
        with self.pager.spans.measure("set"):
            if not self._engine.set_state(SPARE, buffer.blob):
                return False
        self._engine.share(PREFIX, SPARE)
        for item in resident:
            self._engine.share(LIVE, SPARE, item.stored_start, item.end)
        return True

    def join(self, placed: Sequence[Placed], step: Step) -> None:
        """Compute the chunks' heads in place and put them and the rest of the bodies into the live sequence, behind the
        prefix and what it holds of the prompt already.

        Heads are computed many to a batch, each in a sequence that shares the prefix and the stored bodies before
        it. They do not see one another; in small trials that cost little as long as they see the stored bodies from
        their first token on, and one large batch is much faster than many small ones.
        """
        engine = self._engine
        engine.share(PREFIX, LIVE)
        for group in _head_groups(placed):
            heads: list[BatchToken] = []
            for sequence, item in zip(HEADS, group, strict=False):
                engine.share(SPARE, sequence, 0, item.start)
                heads += run(item.fresh, item.start, sequence)
            engine.decode(heads)
            for sequence, item in zip(HEADS, group, strict=False):
                engine.share(sequence, LIVE, item.start, item.stored_start)
                engine.share(SPARE, LIVE, item.stored_start, item.end)
            engine.clear(HEADS)
            step()
        engine.remove(SPARE)


def _head_groups(placed: Sequence[Placed]) -> Iterator[list[Placed]]:
    """Cut into groups with a sequence for each head, small enough to be cancelled between."""
    group: list[Placed] = []
    for item in placed:
        if len(group) == len(HEADS) or sum(len(other.fresh) for other in [*group, item]) > HEAD_BATCH:
            yield group
            group = []
        group.append(item)
    yield group
