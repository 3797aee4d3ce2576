import math

import pytest
import torch

from kvd.kv.rope import Rotation
from kvd.types import Rope


def rope(pairing: str, head_dim: int = 8, n_rot: int = 8) -> Rope:
    return Rope(pairing, head_dim, n_rot, tuple(10_000.0 ** (-2 * i / n_rot) for i in range(n_rot // 2)))


def rotated(rope: Rope, keys: torch.Tensor, positions: list[int]) -> torch.Tensor:
    rotation, out = Rotation(rope), torch.empty_like(keys)
    rotation.rotate(keys, rotation.angles(torch.tensor(positions)), out)
    return out


def by_the_book(rope: Rope, row: list[float], position: int) -> list[float]:
    """The definition, channel by channel."""
    out = list(row)
    for head in range(0, len(row), rope.head_dim):
        for pair, frequency in enumerate(rope.frequencies):
            first = head + (pair if rope.pairing == "neox" else 2 * pair)
            second = first + (rope.n_rot // 2 if rope.pairing == "neox" else 1)
            cos, sin = math.cos(position * frequency), math.sin(position * frequency)
            out[first] = row[first] * cos - row[second] * sin
            out[second] = row[first] * sin + row[second] * cos
    return out


@pytest.mark.parametrize("pairing", ["neox", "norm"])
@pytest.mark.parametrize("n_rot", [8, 4])
def test_follows_the_definition(pairing: str, n_rot: int) -> None:
    shape = rope(pairing, n_rot=n_rot)
    keys = torch.randn((5, 16), generator=torch.Generator().manual_seed(1)).half()
    positions = [0, 1, 17, 4000, -250]
    expected = torch.tensor(
        [by_the_book(shape, row.tolist(), position) for row, position in zip(keys, positions, strict=True)]
    )
    assert torch.allclose(rotated(shape, keys, positions).float(), expected, atol=4e-3)


@pytest.mark.parametrize("pairing", ["neox", "norm"])
def test_there_and_back(pairing: str) -> None:
    keys = torch.randn((40, 16)).half()
    positions = list(range(100, 140))
    there = rotated(rope(pairing), keys, positions)
    assert not torch.allclose(there.float(), keys.float(), atol=0.1)
    back = rotated(rope(pairing), there, [-position for position in positions])
    assert torch.allclose(back.float(), keys.float(), atol=5e-3)


def test_unknown_pairing_is_refused() -> None:
    with pytest.raises(ValueError, match="pairing"):
        Rotation(rope("mrope"))
