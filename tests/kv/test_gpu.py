"""Pool, rotation and pager with the pool on a GPU: the same as in host memory, up to a rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvd.engine.state import StateBuffer, parse_state, state_bytes
from kvd.kv.pager import Body, Pager
from kvd.kv.pool import PAGE_TOKENS, HotPool
from kvd.kv.rope import Rotation
from kvd.kv.rows import host_memory
from kvd.kv.store import BlockStore
from kvd.types import KVShape, Rope

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SHAPE = KVShape(n_layer=3, width=64)
BODY = Body((7, 8), tuple(range(300)))
POSITIONS = list(range(5000, 5300))
STEP = 2**-10
"""A GPU fuses products and sums: one rounding less, which float16's own can show."""


def a_rope(pairing: str) -> Rope:
    return Rope(pairing, 32, 24, tuple(10_000.0 ** (-2 * pair / 24) for pair in range(12)))


def content(tokens: int) -> torch.Tensor:
    return torch.randn((3, 2, tokens, 64), generator=torch.Generator().manual_seed(tokens)).half()


def a_pool(device: str) -> HotPool:
    return HotPool(SHAPE, 60 * PAGE_TOKENS * SHAPE.bytes_per_token, torch.device(device))


def test_the_pool_gives_back_what_was_put_in() -> None:
    pool = a_pool("cuda")
    assert pool.device.type == "cuda"
    block = pool.put(b"a", range(40), content(40).cuda())
    pool.touch(100)
    assert torch.equal(pool.content(block).cpu(), content(40))
    rows = pool.rows([block, pool.put(b"b", range(3), content(3))])
    assert torch.equal(rows.keys(1).cpu(), torch.cat([content(40)[1, 0], content(3)[1, 0]]))
    assert torch.equal(rows.values(2).cpu(), torch.cat([content(40)[2, 1], content(3)[2, 1]]))
    pool.check_integrity()


def test_a_shared_tail_is_copied_before_it_grows() -> None:
    pool = a_pool("cuda")
    shared = pool.append(pool.new_tail(), range(5), content(5).cuda())
    pool.pin([shared])
    own = pool.append(shared, range(2), content(2).cuda())
    assert torch.equal(pool.content(shared).cpu(), content(5))
    assert torch.equal(pool.content(own).cpu(), torch.cat([content(5), content(2)], dim=2))


@pytest.mark.parametrize("pairing", ["neox", "norm"])
def test_keys_are_rotated_alike(pairing: str) -> None:
    keys, positions = content(50)[0, 0], torch.arange(50) * 301
    moved = []
    for device in ("cpu", "cuda"):
        rotation, out = Rotation(a_rope(pairing), torch.device(device)), torch.empty_like(keys, device=device)
        rotation.rotate(keys.to(device), rotation.angles(positions), out)
        moved.append(out.cpu().float())
    assert torch.allclose(moved[1], moved[0], rtol=STEP, atol=STEP)


@pytest.mark.parametrize("pinned", [False, True])
def test_stored_blocks_come_to_the_state_alike(tmp_path: Path, pinned: bool) -> None:
    """New, hot and cold, with the pool on the GPU, against the pool in host memory."""
    states = []
    for device in ("cpu", "cuda"):
        store = BlockStore(tmp_path / f"{device}.db")
        pager = Pager(a_pool(device), store, SHAPE, b"model")
        pager.rehearse(128)
        new, frames = pager.add(BODY, content(300).to(device))
        store.put(frames)
        cold_pager = Pager(a_pool(device), store, SHAPE, b"model")
        (hot,), (cold,) = pager.fetch([BODY]), cold_pager.fetch([BODY])
        for source, fetched in ((pager, new), (pager, hot), (cold_pager, cold)):
            assert fetched is not None
            buffer = StateBuffer(SHAPE, POSITIONS, 3, host_memory(state_bytes(SHAPE, 300), pinned))
            rotation = Rotation(a_rope("neox"), torch.device(device))
            source.rows([fetched]).write(rotation, POSITIONS, buffer.layers())
            states.append(buffer.blob)
        store.close()
    for state in states[1:3]:
        assert (state == states[0]).all()
    for state in states[4:]:
        assert (state == states[3]).all()
    host, gpu = parse_state(states[0]), parse_state(states[3])
    for mine, other in ((gpu.keys, host.keys), (gpu.values, host.values)):
        assert torch.allclose(torch.from_numpy(mine).float(), torch.from_numpy(other).float(), rtol=STEP, atol=STEP)
