from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvd.engine.header import ModelSize
from kvd.engine.llama import BATCH, DoesNotFitError
from kvd.errors import ModelError
from kvd.worker.placement import RESERVE, Gpus, Placement, load_stepwise, placement_from_json, plan

GB = 10**9
SEVEN_B = ModelSize(blocks=(140_000_000,) * 28, output=450_000_000, kv_bytes_per_token=57_344, vocabulary=152_064)
"""About Qwen2.5-Coder-7B Q4_K_M."""
POOL = 2 * GB


@pytest.mark.parametrize(
    ("free", "layers", "pool"),
    [
        (24 * GB, 29, "gpu"),
        (8 * GB, 29, "gpu"),
        (7 * GB, 29, "host"),
        (6 * GB + GB // 2, 29, "host"),
        (4 * GB, 15, "host"),
        (2 * GB, 2, "host"),
        (GB, 0, "host"),
        (0, 0, "host"),
    ],
)
def test_memory_goes_to_layers_with_their_cells_and_then_to_the_pool(free: int, layers: int, pool: str) -> None:
    placement = plan(Gpus(free, 1), SEVEN_B, 8192, POOL)
    assert (placement.layers, placement.total, placement.pool) == (layers, 29, pool)


def test_the_reason_is_one_line_with_figures() -> None:
    def why(free: int) -> str:
        return plan(Gpus(free, 1), SEVEN_B, 8192, POOL).why

    assert why(24 * GB) == "of 24.0 GB free on the GPU they take 5.2 GB, the pool 2.0 GB"
    assert why(7 * GB) == "of 7.0 GB free on the GPU they take 5.2 GB, too much for 2.0 GB of pool beside them"
    assert why(4 * GB) == "of 4.0 GB free on the GPU they take 3.1 GB"
    assert why(GB) == "of 1.0 GB free on the GPU one layer would take 0.9 GB"


def test_a_pool_that_torch_cannot_put_there_stays_in_host_memory() -> None:
    placement = plan(Gpus(80 * GB, 2, "several GPUs share the layers"), SEVEN_B, 8192, POOL)
    assert (placement.layers, placement.pool) == (29, "host")
    assert placement.why.endswith("; several GPUs share the layers")


@pytest.mark.parametrize(
    ("wanted", "layers", "pool"), [(0, 0, "host"), (7, 7, "host"), (29, 29, "gpu"), (999, 29, "gpu")]
)
def test_the_setting_decides_where_it_names_a_number(wanted: int, layers: int, pool: str) -> None:
    placement = plan(Gpus(24 * GB, 1), SEVEN_B, 8192, POOL, wanted)
    assert (placement.layers, placement.pool) == (layers, pool)
    assert placement.why.startswith(f"gpu_layers = {wanted} in the settings")
    # Also where it does not fit: the user may know better, and there is always less to try.
    assert plan(Gpus(GB, 1), SEVEN_B, 8192, POOL, wanted).layers == layers


sizes = st.builds(
    ModelSize,
    st.lists(st.integers(10**5, 10**9), min_size=1, max_size=80).map(tuple),
    st.integers(0, 2 * 10**9),
    st.integers(0, 10**6),
    st.integers(0, 300_000),
)


@given(sizes, st.integers(0, 10**11), st.integers(1, 4), st.integers(1, 200_000), st.integers(0, 10**10))
def test_no_plan_gives_away_what_is_not_there(model: ModelSize, free: int, count: int, cells: int, pool: int) -> None:
    def taken(layers: int) -> int:
        blocks = model.blocks[max(0, len(model.blocks) - layers) :]
        kv = cells * model.kv_bytes_per_token * len(blocks) // len(model.blocks)
        return sum(blocks) + kv + model.output + 4 * BATCH * model.vocabulary

    placement = plan(Gpus(free, count), model, cells, pool)
    room = free - count * RESERVE
    if placement.layers:
        assert taken(placement.layers) + (pool if placement.pool == "gpu" else 0) <= room
    if placement.layers < placement.total:
        assert taken(placement.layers + 1) > room
        assert placement.pool == "host"
    more = plan(Gpus(free + 10**9, count), model, cells, pool)
    assert more.layers >= placement.layers
    assert "\n" not in placement.why + placement.text
    assert placement_from_json(placement.to_json()) == placement


@given(st.integers(0, 200).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))), st.booleans())
def test_every_step_is_smaller_and_the_cpu_is_reached_soon(counts: tuple[int, int], pool: bool) -> None:
    placement: Placement | None = Placement(*counts, "gpu" if pool else "host", "")
    steps = []
    while placement is not None:
        steps.append((placement.layers, placement.pool == "gpu"))
        placement = placement.smaller()
    assert steps == sorted(set(steps), reverse=True)
    assert steps[-1] == (0, False)
    assert len(steps) <= 6


class Machine:
    """A loader that the first `failing` placements are too much for."""

    def __init__(self, failing: int) -> None:
        self.failing = failing
        self.tried: list[Placement] = []
        self.told: list[tuple[str, str]] = []

    def load(self, placement: Placement) -> int:
        self.tried.append(placement)
        if len(self.tried) <= self.failing:
            raise DoesNotFitError("out of memory")
        return placement.layers

    def tell(self, placement: Placement, failure: str) -> None:
        self.told.append((placement.text, failure))


FIRST = Placement(29, 29, "gpu", "it fits")


@pytest.mark.parametrize(("failing", "layers"), [(0, 29), (1, 21), (2, 13), (3, 5), (4, 0)])
def test_what_fails_is_followed_by_less(failing: int, layers: int) -> None:
    machine = Machine(failing)
    assert load_stepwise(FIRST, machine.load, machine.tell) == layers
    assert len(machine.tried) == failing + 1
    assert machine.told[0] == ("29 of 29 layers on the GPU, hot pool on the GPU", "")
    if failing:
        assert machine.told[1] == (
            "21 of 29 layers on the GPU, hot pool in host memory",
            "29 of 29 layers on the GPU, hot pool on the GPU: out of memory",
        )
        before = machine.tried[-2].layers
        assert machine.tried[-1].why == f"{before} layers failed: out of memory"


def test_what_the_cpu_cannot_load_is_an_error() -> None:
    machine = Machine(5)
    with pytest.raises(ModelError, match="out of memory"):
        load_stepwise(FIRST, machine.load, machine.tell)
    assert [placement.layers for placement in machine.tried] == [29, 21, 13, 5, 0]


def test_other_errors_are_not_tried_again() -> None:
    tried = []

    def load(placement: Placement) -> None:
        tried.append(placement)
        raise ModelError("no text model")

    with pytest.raises(ModelError, match="no text model"):
        load_stepwise(FIRST, load, lambda placement, failure: None)
    assert tried == [FIRST]
