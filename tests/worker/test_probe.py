from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

from kvd.engine.llama import LlamaEngine
from kvd.types import Rope
from kvd.worker import probe as probing
from kvd.worker.decoding import LIVE, SPARE, WORK
from kvd.worker.probe import Movable, NotMovableError, probe

FREE = (LIVE, WORK, SPARE)


def test_learns_the_shape_and_rotation_of_the_model(movable: Movable) -> None:
    assert (movable.shape.n_layer, movable.shape.width) == (30, 192)
    assert (movable.rope.pairing, movable.rope.head_dim, movable.rope.n_rot) == ("norm", 64, 64)
    assert movable.rope.frequencies[0] == 1.0


def test_leaves_no_cells_behind(engine: LlamaEngine) -> None:
    engine.clear(range(32))
    probe(engine, FREE)
    assert [engine.last_position(sequence) for sequence in FREE] == [-1, -1, -1]


def slower(rope: Rope, first: int, factor: float) -> Rope:
    """Some models turn their slow channels slower still (rope_freqs of Llama 3)."""
    changed = [value / (factor if pair >= first else 1) for pair, value in enumerate(rope.frequencies)]
    return dataclasses.replace(rope, frequencies=tuple(changed))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda rope: slower(rope, 0, 2.0),
        lambda rope: slower(rope, 21, 8.0),
        lambda rope: dataclasses.replace(rope, pairing="neox"),
        lambda rope: dataclasses.replace(rope, n_rot=32, frequencies=rope.frequencies[:16]),
    ],
)
def test_a_wrong_rotation_is_noticed(
    engine: LlamaEngine, movable: Movable, monkeypatch: pytest.MonkeyPatch, wrong: object
) -> None:
    assert callable(wrong)
    monkeypatch.setattr(probing, "_rope", lambda engine, shape: wrong(movable.rope))
    with pytest.raises(NotMovableError, match="moved by"):
        probe(engine, FREE)


def test_an_unknown_layout_is_noticed(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = engine.get_state

    def longer(sequence: int) -> npt.NDArray[np.uint8]:
        return np.append(real(sequence), np.zeros(4, np.uint8))

    monkeypatch.setattr(engine, "get_state", longer)
    with pytest.raises(NotMovableError, match="left over"):
        probe(engine, FREE)


@pytest.mark.parametrize(
    ("name", "value", "reason"), [("is_plain_attention", False, "sliding window"), ("rope_type", 8, "rope type 8")]
)
def test_models_of_other_kinds_are_refused(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch, name: str, value: object, reason: str
) -> None:
    monkeypatch.setattr(LlamaEngine, name, value)
    with pytest.raises(NotMovableError, match=reason):
        probe(engine, FREE)
