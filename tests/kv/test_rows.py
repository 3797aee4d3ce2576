from __future__ import annotations

import numpy as np
import pytest
import torch

from kvd.engine.state import StateBuffer, parse_state, state_bytes
from kvd.kv.pool import PAGE_TOKENS, HotPool
from kvd.kv.rope import Rotation
from kvd.kv.rows import Rows, host_memory
from kvd.types import KVShape, Rope

SHAPE = KVShape(n_layer=3, width=16)
ROPE = Rope("neox", 8, 6, (1.0, 0.1, 0.01))
TOKENS = 2 * PAGE_TOKENS + 5
POSITIONS = [*range(40, 60), *range(100, 100 + TOKENS - 20)]


def content() -> torch.Tensor:
    return torch.randn((3, 2, TOKENS, 16), generator=torch.Generator().manual_seed(1)).half()


def rows_of(kv: torch.Tensor) -> Rows:
    pool = HotPool(SHAPE, 9 * PAGE_TOKENS * SHAPE.bytes_per_token)
    return pool.rows([pool.put(b"a", range(TOKENS), kv)])


def written(rows: Rows, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as llama.cpp would get them."""
    buffer = StateBuffer(SHAPE, POSITIONS, 3)
    rows.write(rotation, POSITIONS, buffer.layers())
    state = parse_state(buffer.blob)
    assert state.positions.tolist() == POSITIONS
    return torch.from_numpy(state.keys), torch.from_numpy(state.values)


def expected(kv: torch.Tensor) -> torch.Tensor:
    """The keys, layer by layer as `Rotation` moves them."""
    rotation, keys = Rotation(ROPE), torch.empty_like(kv[:, 0])
    for layer in range(SHAPE.n_layer):
        rotation.rotate(kv[layer, 0], rotation.angles(torch.tensor(POSITIONS)), keys[layer])
    return keys


def test_a_states_rows_are_the_pools_with_keys_moved() -> None:
    kv = content()
    keys, values = written(rows_of(kv), Rotation(ROPE))
    assert torch.equal(keys, expected(kv))
    assert torch.equal(values, kv[:, 1])


def test_rows_that_take_the_way_over_a_device_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = content()
    monkeypatch.setattr(Rows, "on_host", False)
    keys, values = written(rows_of(kv), Rotation(ROPE))
    assert torch.equal(keys, expected(kv))
    assert torch.equal(values, kv[:, 1])


@pytest.mark.parametrize("pinned", [False, True])
def test_memory_is_had_where_it_cannot_be_pinned(pinned: bool) -> None:
    memory = host_memory(1000, pinned)
    memory.fill(7)
    assert memory.dtype == np.uint8
    assert (memory.size, int(memory.sum())) == (1000, 7000)


def test_a_states_size_is_told_beforehand() -> None:
    assert StateBuffer(SHAPE, POSITIONS, 3).blob.size == state_bytes(SHAPE, TOKENS)
