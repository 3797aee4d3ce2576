"""What of a model goes on the GPU, and what to try after that did not fit.

GPU memory goes to the layers first, each with its cells, then to the hot pool. llama.cpp takes KV from host memory
only, so that a pool on the GPU costs a copy down and one up again: it is there for what dequantizing and rotating
gain by it, when nothing else needs the room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from kvd.engine.header import ModelSize
from kvd.engine.llama import BATCH, DoesNotFitError

Result = TypeVar("Result")

RESERVE = 768 << 20
"""Bytes of each GPU that no plan gives away: contexts and kernels of ggml and torch, buffers of attention and
rotation, and what other programs may take meanwhile. An assumption: it was not measured."""

_FLOAT_BYTES = 4
_POOL_WORDS = {"gpu": ", hot pool on the GPU", "host": ", hot pool in host memory", "none": ""}


@dataclass(frozen=True, slots=True)
class Gpus:
    """Memory that llama.cpp may take: `free` bytes of `count` GPUs. `no_pool` says why torch can't use it, or is ""."""

    free: int
    count: int
    no_pool: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """`layers` of `total` are on the GPU with their cells, the output counting as one; the rest is the CPU's.

    `pool` is "gpu", "host" or "none". `why` says in one line how that came about.
    """

    layers: int
    total: int
    pool: str
    why: str

    @property
    def text(self) -> str:
        """`29 of 29 layers on the GPU, hot pool in host memory`"""
        where = f"{self.layers} of {self.total} layers on the GPU" if self.layers else "CPU only"
        return where + (_POOL_WORDS[self.pool] if self.layers else "")

    def smaller(self) -> Placement | None:
        """What to try after this one: the pool leaves the GPU before the layers do. None after the CPU alone."""
        return replace(self, pool="host") if self.pool == "gpu" else self.fewer_layers()

    def fewer_layers(self) -> Placement | None:
        """Less by a quarter of the model, as each try costs a load; the pool in host memory."""
        step = -(-self.total // 4)
        return replace(self, layers=max(0, self.layers - step), pool="host") if self.layers else None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "text": self.text}


def placement_from_json(data: dict[str, Any]) -> Placement:
    return Placement(int(data["layers"]), int(data["total"]), str(data["pool"]), str(data["why"]))


def plan(gpus: Gpus, model: ModelSize, cells: int, pool_bytes: int, wanted: int = -1) -> Placement:
    """The split of the GPUs' memory for a context of `cells` tokens and a pool of `pool_bytes`.

    `wanted` layers, as far as there are so many; -1: as many as fit. The pool is on the GPU only with all layers.
    """
    total = len(model.blocks) + 1
    if wanted == 0:
        return Placement(0, total, "host", "gpu_layers = 0 in the settings")
    room = gpus.free - gpus.count * RESERVE
    needs = [_bytes_of(model, cells, layers) for layers in range(total + 1)]
    if wanted > 0:
        layers, why = min(wanted, total), f"gpu_layers = {wanted} in the settings"
    else:
        layers = max(count for count, need in enumerate(needs) if not count or need <= room)
        why = f"of {gigabytes(gpus.free)} free on the GPU "
        why += f"they take {gigabytes(needs[layers])}" if layers else f"one layer would take {gigabytes(needs[1])}"
    pool, words = _pool_place(gpus, room - needs[layers], pool_bytes) if layers == total else ("host", "")
    return Placement(layers, total, pool, why + words)


def _bytes_of(model: ModelSize, cells: int, layers: int) -> int:
    """What so many layers take at most, with their cells and the buffer that logits are computed in.

    llama.cpp has counted the output as the first layer to go on the GPU and as the last; here it is always there.
    """
    blocks = model.blocks[-layers:] if layers else ()
    if not layers:
        return 0
    kv = cells * model.kv_bytes_per_token * len(blocks) // len(model.blocks)
    return model.output + sum(blocks) + kv + BATCH * model.vocabulary * _FLOAT_BYTES


def _pool_place(gpus: Gpus, left: int, pool_bytes: int) -> tuple[str, str]:
    """Where the pool goes when `left` bytes are left after everything else, and why."""
    if gpus.no_pool:
        return "host", f"; {gpus.no_pool}"
    if left < pool_bytes:
        return "host", f", too much for {gigabytes(pool_bytes)} of pool beside them"
    return "gpu", f", the pool {gigabytes(pool_bytes)}"


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def load_stepwise(
    first: Placement, load: Callable[[Placement], Result], tell: Callable[[Placement, str], None]
) -> Result:
    """Load with `first`, or with fewer layers on the GPU as long as `load` raises `DoesNotFitError`.

    `tell` gets what is tried next, and what had failed before it or "". Raises the error that came without any GPU.
    """
    placement, failure = first, ""
    while True:
        tell(placement, failure)
        try:
            return load(placement)
        except DoesNotFitError as error:
            fewer = placement.fewer_layers()
            if fewer is None:
                raise
            failure = f"{placement.text}: {error.message}"
            placement = replace(fewer, why=f"{placement.layers} layers failed: {error.message}")
