"""What the engine child does beside answering: its counters, and the check of its pool when it is idle."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from kvd.worker.gate import Verdict
from tests.conftest import poll

from .conftest import SOURCES, model_path
from .test_child import Wire, counters, lookups


def test_counters_go_with_frames(tmp_path: Path, verdict: Verdict) -> None:
    with closing(Wire(tmp_path / "kv.db", verdict.to_json())) as wire:
        wire.load(model_path())
        first = wire.ask(2)
        blocks = wire.store.stats()["blocks"]
        assert counters(wire, first) == lookups(hot_miss=blocks, cold_miss=blocks)
        again = wire.ask(3)
        assert counters(wire, again) == lookups(hot_miss=blocks, cold_miss=blocks, hot_hit=blocks)
    with closing(Wire(tmp_path / "kv.db", verdict.to_json())) as wire:
        wire.load(model_path())
        cold = wire.ask(2)
        assert counters(wire, cold) == lookups(hot_miss=blocks, cold_hit=blocks, swapped_in=blocks)
        # They come before the answer does: a child that dies while it answers has told them.
        names = [event["event"] for event in wire.events]
        told = [event["counters"] for event in wire.events[: names.index("token") + 1] if "counters" in event]
        assert told[-1] == counters(wire)


IDLE = """
import kvd.worker.child
from kvd.kv.pool import HotPool
kvd.worker.child.IDLE_SECONDS = 1.0
"""
BROKEN_POOL = """
put = HotPool.put
def put_and_free(self, key, tokens, kv):
    block = put(self, key, tokens, kv)
    self._free.append(block.pages[0])
    return block
HotPool.put = put_and_free
"""
COUNTED_CHECKS = """
check = HotPool.check_integrity
def counted_check(self):
    check(self)
    with open(CHECKS, "a") as file:
        print("checked", file=file)
HotPool.check_integrity = counted_check
"""


def test_a_broken_pool_ends_the_idle_child(tmp_path: Path, verdict: Verdict) -> None:
    with closing(Wire(tmp_path / "kv.db", verdict.to_json(), IDLE + BROKEN_POOL)) as wire:
        wire.load(model_path())
        assert "result" in wire.ask(2)
        with pytest.raises(AssertionError, match="the child died: 1"):
            wire.receive()
        last = wire.events[-1]
        assert last["event"] == "integrity"
        assert last["data"] == {"reason": "IntegrityError: a page is lost or held twice"}
        assert last["counters"]["integrity_failures"] == 1


def test_the_pool_is_checked_once_after_each_burst_of_questions(tmp_path: Path, verdict: Verdict) -> None:
    file = tmp_path / "checks"
    file.touch()
    before = f"{IDLE}\nCHECKS = {str(file)!r}\n{COUNTED_CHECKS}"
    with closing(Wire(tmp_path / "kv.db", verdict.to_json(), before)) as wire:
        wire.load(model_path(), resident_prompts=8)
        for number in range(2, 5):
            assert "result" in wire.ask(number)
        poll(lambda: file.read_text() == "checked\n")
        for number in range(5, 20):
            wire.call(number, "stats")
        assert "result" in wire.ask(20, "prefetch", client=1)
        poll(lambda: file.read_text() == "checked\n" * 2)
        wire.call(21, "shutdown")
        assert wire.process.wait(10) == 0
    assert file.read_text() == "checked\n" * 2


def test_what_the_cells_hold_is_not_looked_up_in_the_pool(tmp_path: Path, verdict: Verdict) -> None:
    with closing(Wire(tmp_path / "kv.db", verdict.to_json())) as wire:
        wire.load(model_path(), resident_prompts=8)
        first = counters(wire, wire.ask(2))
        again = wire.ask(3)
        assert again["result"]["tokens"]["resident"] == again["result"]["tokens"]["recalled"]
        assert counters(wire, again) == {**first, "cells_hit": first["hot_miss"]}
        cells = wire.call(4, "stats")["result"]["cells"]
    assert cells["runs"] == len(SOURCES)
    assert cells["used_bytes"] == (cells["prefix"] + cells["resident"]) * 2 * 30 * 192 * 2


COUNTED_BODIES = """
from kvd.worker.prompt import PromptBuilder
body = PromptBuilder.body
def counted_body(self, text):
    with open(BODIES, "a") as file:
        print("tokenized", file=file)
    return body(self, text)
PromptBuilder.body = counted_body
"""


def test_what_is_cancelled_before_its_turn_costs_nothing(tmp_path: Path, verdict: Verdict) -> None:
    file = tmp_path / "bodies"
    with closing(Wire(tmp_path / "kv.db", verdict.to_json(), f"BODIES = {str(file)!r}\n{COUNTED_BODIES}")) as wire:
        wire.load(model_path())
        file.write_text("")
        for number in (2, 3):
            wire.send({"method": "cancel", "params": {"id": number}})
        assert wire.ask(2, "prefetch", client=1)["result"]["missing"] == 0
        assert wire.ask(3)["error"]["code"] == "cancelled"
        assert file.read_text() == ""
        assert wire.ask(4, "prefetch", client=1)["result"]["missing"] > 0
        assert file.read_text() == "tokenized\n" * len(SOURCES)
