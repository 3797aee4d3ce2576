"""Can this model's KV be taken out, moved and put back? Learned from the engine itself at start-up.

Three checks, on a few tokens: the state's layout accounts for every byte; what is put back reads back byte for
byte; and keys rotated by kvd equal the keys that llama.cpp computes at other positions, in every layer. Where one
fails, prompts are computed whole, and the reason is told.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvd.engine.llama import LlamaEngine, run
from kvd.engine.state import SequenceState, StateBuffer, StateFormatError, parse_state
from kvd.errors import ModelError
from kvd.kv.rope import Rotation
from kvd.types import KVShape, Rope

_PAIRINGS = {0: "norm", 2: "neox"}
"""`enum llama_rope_type` -> how channels are paired."""

_TEXT = "def probe(values):\n    return [value + 1 for value in values]\n"
_TOLERANCE = 0.02
"""Relative RMS difference of rotated keys: float16 gives below 0.005, a wrong rotation about 1."""


@dataclass(frozen=True, slots=True)
class Movable:
    """The KV of this model can be stored and moved."""

    shape: KVShape
    rope: Rope


class NotMovableError(Exception):
    """It can't; the message says why."""


def probe(engine: LlamaEngine, sequences: tuple[int, int]) -> Movable:
    """Raises `NotMovableError`. Uses two free sequences and leaves them empty."""
    if not engine.is_plain_attention:
        raise NotMovableError("the model is recurrent, hybrid or attends through a sliding window")
    if engine.rope_type not in _PAIRINGS:
        raise NotMovableError(f"keys are rotated in a way kvd does not know (rope type {engine.rope_type})")
    try:
        return _probe(engine, *sequences)
    except (StateFormatError, ModelError) as error:
        raise NotMovableError(f"llama.cpp's state has a layout kvd does not know: {error}") from error
    finally:
        engine.clear(sequences)


def _probe(engine: LlamaEngine, home: int, away: int) -> Movable:
    tokens = engine.tokenize(_TEXT)
    engine.decode(run(tokens, 0, home))
    state = parse_state(engine.get_state(home))
    if state.positions.tolist() != list(range(len(tokens))):
        raise StateFormatError("positions are not those that were computed")
    shape = KVShape(state.keys.shape[0], state.keys.shape[2])
    _check_round_trip(engine, state, shape, away)
    rope = _rope(engine, shape)
    for offset in (97, engine.n_ctx - len(tokens) - 1):
        engine.remove(away)
        engine.decode(run(tokens, offset, away))
        _check_rotation(state, parse_state(engine.get_state(away)), Rotation(rope), offset)
    return Movable(shape, rope)


def _check_round_trip(engine: LlamaEngine, state: SequenceState, shape: KVShape, sequence: int) -> None:
    buffer = StateBuffer(shape, state.positions.tolist(), sequence)
    for layer in range(shape.n_layer):
        buffer.keys(layer)[:] = state.keys[layer]
        buffer.values(layer)[:] = state.values[layer]
    if not engine.set_state(sequence, buffer.blob):
        raise StateFormatError("llama.cpp refuses what it gave out")
    if not np.array_equal(engine.get_state(sequence), buffer.blob):
        raise StateFormatError("what was put back reads back differently")


def _check_rotation(home: SequenceState, away: SequenceState, rotation: Rotation, offset: int) -> None:
    angles = rotation.angles(torch.full((len(home.positions),), offset))
    for layer, (keys, expected) in enumerate(zip(home.keys, away.keys, strict=True)):
        moved = torch.empty_like(torch.from_numpy(keys))
        rotation.rotate(torch.from_numpy(keys), angles, moved)
        want = torch.from_numpy(expected).float()
        difference = (moved.float() - want).norm() / want.norm()
        # Written so that a NaN fails too.
        if not difference < _TOLERANCE:
            raise NotMovableError(
                f"keys of layer {layer} moved by {offset} positions differ from llama.cpp's by {difference:.0%}"
            )


def _rope(engine: LlamaEngine, shape: KVShape) -> Rope:
    """The rotation that the model's metadata describes; the check against real keys decides if it is right."""
    arch = engine.metadata("general.architecture") or ""

    def number(key: str, default: float) -> float:
        return float(engine.metadata(f"{arch}.{key}") or default)

    heads = number("attention.head_count", 1)
    head_dim = int(number("attention.key_length", number("embedding_length", shape.width) // heads))
    n_rot = int(number("rope.dimension_count", head_dim))
    if shape.width % head_dim or not 0 < n_rot <= head_dim or n_rot % 2:
        raise NotMovableError(f"heads of {head_dim} channels do not fit rows of {shape.width}")
    base = number("rope.freq_base", 10_000.0)
    scale = 1.0 / number("rope.scaling.factor", 1.0)
    frequencies = tuple(scale * base ** (-2 * pair / n_rot) for pair in range(n_rot // 2))
    return Rope(_PAIRINGS[engine.rope_type], head_dim, n_rot, frequencies)
