"""Can this model's KV be taken out, moved and put back? Learned from the engine itself at start-up.

Three checks, on a few tokens: the state's layout accounts for every byte; what is put back reads back byte for
byte; and keys rotated by kvd equal the keys that llama.cpp computes at other positions, in every layer. Where one
fails, prompts are computed whole, and the reason is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvd.engine.llama import BatchToken, LlamaEngine, run
from kvd.engine.state import SequenceState, StateBuffer, StateFormatError, parse_state
from kvd.errors import ModelError
from kvd.kv.rope import Rotation
from kvd.types import KVShape, Rope

_PAIRINGS = {0: "norm", 2: "neox"}
"""`enum llama_rope_type` -> how channels are paired."""

_TEXT = "def probe(values):\n    return [value + 1 for value in values]\n"
_TOLERANCE = 0.003
"""Relative RMS difference of rotated keys: float16 gives 0.0005; frequencies that are wrong for a third of the
channels by a factor of 8 give 0.01 and more at the far end of the context, other mistakes 0.05 to 1."""


@dataclass(frozen=True, slots=True)
class Movable:
    """The KV of this model can be stored and moved."""

    shape: KVShape
    rope: Rope


class NotMovableError(Exception):
    """It can't; the message says why."""


def probe(engine: LlamaEngine, sequences: Sequence[int]) -> Movable:
    """Raises `NotMovableError`. Uses free sequences, at least two, and leaves them empty."""
    if not engine.is_plain_attention:
        raise NotMovableError("the model is recurrent, hybrid or attends through a sliding window")
    if engine.rope_type not in _PAIRINGS:
        raise NotMovableError(f"keys are rotated in a way kvd does not know (rope type {engine.rope_type})")
    try:
        shape = _check_layout(engine, sequences[0], sequences[1])
        rope = _rope(engine, shape)
        _check_rotation(engine, sequences, Rotation(rope))
    except (StateFormatError, ModelError) as error:
        raise NotMovableError(f"llama.cpp's state has a layout kvd does not know: {error}") from error
    finally:
        engine.clear(sequences)
    return Movable(shape, rope)


def _check_layout(engine: LlamaEngine, first: int, second: int) -> KVShape:
    tokens = engine.tokenize(_TEXT)
    engine.decode(run(tokens, 0, first))
    state = parse_state(engine.get_state(first))
    if state.positions.tolist() != list(range(len(tokens))):
        raise StateFormatError("positions are not those that were computed")
    shape = KVShape(state.keys.shape[0], state.keys.shape[2])
    _check_round_trip(engine, state, shape, second)
    return shape


def _check_round_trip(engine: LlamaEngine, state: SequenceState, shape: KVShape, sequence: int) -> None:
    buffer = StateBuffer(shape, state.positions.tolist(), sequence)
    for layer in range(shape.n_layer):
        buffer.keys(layer)[:] = state.keys[layer]
        buffer.values(layer)[:] = state.values[layer]
    if not engine.set_state(sequence, buffer.blob):
        raise StateFormatError("llama.cpp refuses what it gave out")
    if not np.array_equal(engine.get_state(sequence), buffer.blob):
        raise StateFormatError("what was put back reads back differently")


def _check_rotation(engine: LlamaEngine, sequences: Sequence[int], rotation: Rotation) -> None:
    """Compare keys of the same tokens at position 0 and elsewhere, in every layer.

    Each token stands alone in its sequence: with nothing else to attend to, its keys differ by the rotation and
    nothing else, so that the comparison can be strict.
    """
    home = _lone_keys(engine, sequences, 0)
    for offset in (1, 97, engine.longest - 1):
        away = _lone_keys(engine, sequences, offset)
        angles = rotation.angles(torch.full((len(sequences),), offset))
        for layer, (keys, want) in enumerate(zip(home, away.float(), strict=True)):
            moved = torch.empty_like(keys)
            rotation.rotate(keys, angles, moved)
            difference = float((moved.float() - want).norm() / want.norm())
            # Written so that a NaN fails too.
            if not difference < _TOLERANCE:
                raise NotMovableError(
                    f"keys of layer {layer} moved by {offset} positions are off by {difference:.1%} from llama.cpp's"
                )


def _lone_keys(engine: LlamaEngine, sequences: Sequence[int], position: int) -> torch.Tensor:
    """Keys `[n_layer, len(sequences), width]` of one token for each sequence, alone at `position`."""
    engine.clear(sequences)
    tokens = engine.tokenize(_TEXT)
    engine.decode([BatchToken(tokens[index], position, (sequence,)) for index, sequence in enumerate(sequences)])
    states = [parse_state(engine.get_state(sequence)) for sequence in sequences]
    return torch.from_numpy(np.concatenate([state.keys for state in states], axis=1))


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
