"""Reused KV in a prompt: bodies from the pager, moved to where they stand, their headers computed in place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import llama_cpp
import numpy as np
import torch

from kvd.engine.llama import LlamaEngine
from kvd.engine.state import StateBuffer, parse_state
from kvd.errors import ModelError
from kvd.kv import codec
from kvd.kv.pager import Fetched, Pager
from kvd.kv.rope import Rotation
from kvd.kv.store import StoredBlock
from kvd.types import KVShape
from kvd.worker.decoding import LIVE, PREFIX, SPARE, WORK, Step, decode_run
from kvd.worker.probe import Movable
from kvd.worker.prompt import PromptBuilder


def fingerprint(model_sha256: str, movable: Movable, prompts: PromptBuilder) -> bytes:
    """Everything that decides whether stored KV is this model's: content, build, codec, what went before it."""
    parts = (
        model_sha256,
        llama_cpp.__version__,
        codec.codec_id(movable.shape),
        [movable.shape.n_layer, movable.shape.width],
        [movable.rope.pairing, *movable.rope.frequencies],
        prompts.prefix,
        prompts.neutral_header,
    )
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=32).digest()


@dataclass(frozen=True, slots=True)
class Placed:
    """A chunk's place in the prompt: its header's tokens from `start` on, then its body.

    The first `recompute` tokens of the body are computed in place, the others are taken from `stored`.
    """

    header: Sequence[int]
    body: tuple[int, ...]
    stored: Fetched
    start: int
    recompute: int

    @property
    def stored_start(self) -> int:
        return self.start + len(self.header) + self.recompute

    @property
    def end(self) -> int:
        return self.start + len(self.header) + len(self.body)

    @property
    def fresh(self) -> list[int]:
        return [*self.header, *self.body[: self.recompute]]


class Reuse:
    """Makes, keeps and places bodies' KV for one engine."""

    def __init__(self, engine: LlamaEngine, prompts: PromptBuilder, movable: Movable, pager: Pager) -> None:
        self._engine, self._prompts, self.pager = engine, prompts, pager
        self.shape: KVShape = movable.shape
        self._rotation = Rotation(movable.rope)

    def compute(self, body: tuple[int, ...], step: Step) -> tuple[Fetched, list[StoredBlock]]:
        """Prefill a body after the shared prefix and a neutral header, and store it; `step` may cancel."""
        engine, header = self._engine, self._prompts.neutral_header
        start = len(self._prompts.prefix)
        body_start = start + len(header)
        engine.share(PREFIX, WORK)
        decode_run(engine, [*header, *body], start, WORK, step)
        engine.share(WORK, SPARE, body_start)
        state = parse_state(engine.get_state(SPARE))
        engine.clear((WORK, SPARE))
        if state.positions.tolist() != list(range(body_start, body_start + len(body))):
            raise ModelError("llama.cpp gave back other cells than were computed", hint="kvd logs")
        angles = self._rotation.angles(-torch.from_numpy(state.positions.astype(np.int64)))
        kv = torch.empty((self.shape.n_layer, 2, len(body), self.shape.width), dtype=torch.float16)
        for layer in range(self.shape.n_layer):
            self._rotation.rotate(torch.from_numpy(state.keys[layer]), angles, kv[layer, 0])
            kv[layer, 1] = torch.from_numpy(state.values[layer])
        return self.pager.add(body, kv)

    def set_stored(self, item: Placed) -> bool:
        """Append the stored part of a body to the live sequence; False when llama.cpp refuses the state."""
        positions = range(item.stored_start, item.end)
        buffer = StateBuffer(self.shape, positions, SPARE)
        rows = self.pager.rows(item.stored, item.recompute)
        angles = self._rotation.angles(torch.tensor(positions))
        for layer in range(self.shape.n_layer):
            self._rotation.rotate(rows.keys(layer), angles, torch.from_numpy(buffer.keys(layer)))
            torch.from_numpy(buffer.values(layer)).copy_(rows.values(layer))
        if not self._engine.set_state(SPARE, buffer.blob):
            return False
        self._engine.share(SPARE, LIVE)
        self._engine.remove(SPARE)
        return True
