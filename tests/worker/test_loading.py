"""Loading as on a machine with a GPU: its memory and its failures are put in, everything else is real."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from kvd.worker.gate import Verdict
from kvd.worker.protocol import Message

from .conftest import model_path
from .test_child import Wire

GPU = """
import kvd.worker.loading
kvd.worker.loading.gpu_memory = lambda: [{free}]
"""
FAILS = """
from kvd.engine.llama import DoesNotFitError, LlamaEngine
failing = [{failing}]
make = LlamaEngine._make_context
def make_context(engine, threads):
    if failing and failing.pop():
        raise DoesNotFitError("no room for the cells")
    return make(engine, threads)
LlamaEngine._make_context = make_context
"""
NO_POOL = """
import torch
torch.cuda.is_available = lambda: True
torch.cuda.mem_get_info = lambda: ({free}, {free})
"""
DIES = """
import os
from kvd.worker.probe import probe
kvd.worker.loading.probe = lambda engine, sequences: os.abort()
"""
ALL = "31 of 31 layers on the GPU"


def placements(wire: Wire) -> list[Message]:
    return [event["data"] for event in wire.events if event["event"] == "placement"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "kv.db"


@pytest.fixture
def gate(verdict: Verdict) -> Message:
    return verdict.to_json()


def test_without_a_gpu_nothing_else_is_tried(store: Path, gate: Message) -> None:
    with closing(Wire(store, gate)) as wire:
        loaded = wire.load(model_path())["result"]
        (told,) = placements(wire)
    assert (told["next"], told["failure"]) == (None, "")
    assert (loaded["gpu"], loaded["placement"]["text"]) == ("", "CPU only")
    assert loaded["placement"]["why"] == "llama.cpp sees no GPU"


def test_with_one_as_many_layers_as_fit_go_there(store: Path, gate: Message) -> None:
    with closing(Wire(store, gate, GPU.format(free=8 << 30))) as wire:
        loaded = wire.load(model_path())["result"]
        (told,) = placements(wire)
        assert wire.ask(2)["result"]["tokens"]["recalled"] > 100
    assert loaded["gpu"] == "yes"
    assert told["placement"] == loaded["placement"]
    assert loaded["placement"]["text"] == f"{ALL}, hot pool in host memory"
    assert loaded["placement"]["why"].endswith("; torch can't use it")
    assert told["next"]["layers"] == 23


def test_the_setting_keeps_layers_off_it(store: Path, gate: Message) -> None:
    with closing(Wire(store, gate, GPU.format(free=8 << 30))) as wire:
        loaded = wire.load(model_path(), gpu_layers=0)["result"]
    assert (loaded["gpu"], loaded["placement"]["why"]) == ("", "gpu_layers = 0 in the settings")


def test_without_reuse_there_is_no_pool_to_place(store: Path) -> None:
    with closing(Wire(store, None, GPU.format(free=8 << 30))) as wire:
        assert wire.load(model_path(), reuse=False)["result"]["placement"]["text"] == ALL


def test_a_context_that_does_not_fit_is_made_with_fewer_layers(store: Path, gate: Message) -> None:
    before = GPU.format(free=8 << 30) + FAILS.format(failing="False, True, True")
    with closing(Wire(store, gate, before)) as wire:
        loaded = wire.load(model_path())["result"]
        told = placements(wire)
        assert wire.ask(2)["result"]["tokens"]["recalled"] > 100
    assert [data["placement"]["layers"] for data in told] == [31, 23, 15]
    assert told[1]["failure"] == f"{ALL}, hot pool in host memory: no room for the cells"
    assert loaded["placement"]["layers"] == 15
    assert loaded["placement"]["why"] == "23 layers failed: no room for the cells"


def test_a_load_that_fails_on_the_cpu_too_is_an_error_and_the_child_lives(store: Path, gate: Message) -> None:
    before = GPU.format(free=8 << 30) + FAILS.format(failing="True, True, True, True, True")
    with closing(Wire(store, gate, before)) as wire:
        assert wire.load(model_path())["error"]["message"] == "no room for the cells"
        assert [data["placement"]["layers"] for data in placements(wire)] == [31, 23, 15, 7, 0]
        assert wire.load(model_path())["result"]["placement"]["layers"] == 31


def test_a_pool_that_finds_no_room_on_the_gpu_is_made_in_host_memory(store: Path, gate: Message) -> None:
    before = GPU.format(free=16 << 30) + NO_POOL.format(free=100 << 20)
    with closing(Wire(store, gate, before)) as wire:
        loaded = wire.load(model_path())["result"]
        told = placements(wire)
        assert wire.ask(2)["result"]["tokens"]["recalled"] > 100
    # Should the process end by it, the layers need not leave the GPU.
    assert [(data["placement"]["pool"], data["next"]["layers"], data["next"]["pool"]) for data in told] == [
        ("gpu", 23, "host"),
        ("gpu", 31, "host"),
        ("host", 23, "host"),
    ]
    assert told[2]["failure"].startswith("the hot pool does not fit the GPU: 0.1 GB of its memory are free")
    assert loaded["placement"]["text"] == f"{ALL}, hot pool in host memory"


def test_what_the_daemon_says_after_a_death_is_what_is_tried(store: Path, gate: Message) -> None:
    gpu = GPU.format(free=8 << 30)
    with closing(Wire(store, gate, gpu + DIES)) as wire:
        with pytest.raises(AssertionError, match="the child died: -6"):
            wire.load(model_path())
        following = placements(wire)[-1]["next"]
    with closing(Wire(store, gate, gpu)) as wire:
        loaded = wire.load(model_path(), placement=following)["result"]
    assert loaded["placement"] == following
