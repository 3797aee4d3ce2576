"""The engine child as the daemon sees it: a real process, real frames, the real small model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvd.kv.store import BlockStore, StoredBlock
from kvd.worker.gate import Verdict
from kvd.worker.protocol import Message, encode_frame, encode_vector, read_frame

from .conftest import N_CTX, SHA256, SOURCES, model_path


class Wire:
    """Talks to a child; stores what it asks to have stored. `gate`: the verdict that is known of the model.

    `before` is a program that runs in the child's process before it serves.
    """

    def __init__(self, store: Path, gate: Message | None = None, before: str = "") -> None:
        self.store, self.gate = BlockStore(store), gate
        program = f"{before}\nfrom kvd.worker.__main__ import main\nmain()"
        self.process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.events: list[Message] = []

    def send(self, message: Message) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(encode_frame(message))
        self.process.stdin.flush()

    def receive(self) -> Message:
        """The next answer; events before it are kept."""
        assert self.process.stdout is not None
        while (frame := read_frame(self.process.stdout)) is not None:
            message, blob = frame
            if "event" not in message:
                return message
            self.events.append(message)
            if message["event"] == "blocks":
                self._put(message["data"]["blocks"], blob)
        raise AssertionError(f"the child died: {self.process.wait(10)}")

    def _put(self, described: list[dict[str, Any]], blob: bytes) -> None:
        start = 0
        for block in described:
            key, parent, whose = (bytes.fromhex(block[name]) for name in ("key", "parent", "fingerprint"))
            self.store.put([StoredBlock(key, parent, whose, block["tokens"], blob[start : start + block["size"]])])
            start += block["size"]
        assert start == len(blob)

    def call(self, number: int, method: str, **params: object) -> Message:
        self.send({"id": number, "method": method, "params": params})
        message = self.receive()
        assert message["id"] == number
        return message

    def load(self, path: Path, **changes: object) -> Message:
        params: dict[str, object] = {
            "model_path": str(path),
            "model_name": "small",
            "model_sha256": SHA256,
            "store_path": str(self.store_path),
            "n_ctx": N_CTX,
            "parallel": 2,
            "threads": 0,
            "gpu_layers": -1,
            "reuse": True,
            "recompute": 0,
            "short_headers": False,
            "resident_prompts": 0,
            "pool_bytes": 0,
            "eviction": "combined",
            "gate": self.gate,
        }
        return self.call(1, "load", **{**params, **changes})

    @property
    def store_path(self) -> Path:
        return self.store.path

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def ask(self, number: int, method: str = "ask", **changes: object) -> Message:
        chunks = [
            {
                "path": path,
                "start_line": 1,
                "end_line": 9,
                "scope": "",
                "language": "python",
                "text": text,
                "vector": encode_vector(vector),
            }
            for (path, text), vector in zip(SOURCES.items(), np.eye(len(SOURCES), dtype=np.float32), strict=True)
        ]
        params: dict[str, object] = {
            "question": "How is a password checked?",
            "vector": encode_vector(np.ones(len(SOURCES), np.float32)),
            "chunks": chunks,
            "budget": 600,
            "max_tokens": 8,
            "reuse": True,
        }
        return self.call(number, method, **{**params, **changes})


@pytest.fixture
def wire(tmp_path: Path, verdict: Verdict) -> Iterator[Wire]:
    wire = Wire(tmp_path / "kv.db", verdict.to_json())
    yield wire
    wire.close()


def checks(wire: Wire) -> int:
    """How often the child said that it checks the model."""
    stages = [event["data"] for event in wire.events if event["event"] == "stage"]
    return sum(stage["stage"] == "check" and stage["done"] == 0 for stage in stages)


def counters(wire: Wire, answer: Message | None = None) -> dict[str, int]:
    """The last that the child told."""
    told = [frame["counters"] for frame in [*wire.events, answer or {}] if "counters" in frame]
    return dict(told[-1])


def lookups(**counts: int) -> dict[str, int]:
    """What a child with a pool tells: all of these, though they be 0."""
    return {"hot_hit": 0, "hot_miss": 0, "cold_hit": 0, "cold_miss": 0, "hot_evicted": 0, **counts}


def test_a_question_from_start_to_end(wire: Wire) -> None:
    loaded = wire.load(model_path())["result"]
    assert (loaded["reuse"], loaded["reuse_reason"]) == ("on", "")
    assert loaded["kv_bytes_per_token"] == 2 * 30 * 192 * 2
    first = wire.ask(2)["result"]
    texts = [event["data"]["text"] for event in wire.events if event["event"] == "token"]
    assert "".join(texts) == first["answer"]
    stages = [event["data"]["done"] for event in wire.events if event["event"] == "stage"]
    assert stages == [0, 1, 2, 3]
    assert wire.store.stats()["tokens"] == first["tokens"]["recalled"]
    again = wire.ask(3)["result"]
    assert again["tokens"]["reused_hot"] == again["tokens"]["recalled"]
    assert wire.call(4, "stats")["result"]["pool"]["tokens"] == first["tokens"]["recalled"]
    assert wire.call(5, "shutdown") == {"id": 5, "result": {}}
    assert wire.process.wait(10) == 0
    touched = {key for event in wire.events if event["event"] == "touch" for key in event["data"]["keys"]}
    assert len(touched) == wire.store.stats()["blocks"]


def test_what_one_child_stored_another_loads(wire: Wire) -> None:
    wire.load(model_path())
    first = wire.ask(2)["result"]
    blocks = wire.store.stats()["blocks"]
    with closing(Wire(wire.store_path, wire.gate)) as other:
        other.load(model_path())
        # A draft that a question has overtaken brings in nothing.
        other.send({"method": "cancel", "params": {"id": 7}})
        draft = other.ask(7, "prefetch", client=3)["result"]
        assert draft == {"dropped": "", "hot": 0, "loaded": 0, "missing": 0}
        draft = other.ask(8, "prefetch", client=3)["result"]
        assert draft == {"dropped": "", "hot": 0, "loaded": blocks, "missing": 0}
        cold = other.ask(2)["result"]
        assert cold["tokens"]["reused_hot"] == cold["tokens"]["recalled"]
        assert cold["answer"] == first["answer"]


def test_the_same_file_under_another_hash_is_another_model(wire: Wire) -> None:
    wire.load(model_path())
    recalled = wire.ask(2)["result"]["tokens"]["recalled"]
    blocks = wire.store.stats()["blocks"]
    assert wire.gate is not None
    with closing(Wire(wire.store_path)) as other:
        loaded = other.load(model_path(), model_sha256="1" * 64, gate={**wire.gate, "key": "of another"})["result"]
        assert checks(other) == 1
        assert loaded["gate"]["key"] != wire.gate["key"]
        assert loaded["gate"]["figures"] == pytest.approx(wire.gate["figures"], rel=0.2)
        answer = other.ask(2)
        assert answer["result"]["tokens"]["prefilled"] == recalled
        # The gate's own look-ups are not among them.
        assert counters(other, answer) == lookups(hot_miss=blocks, cold_miss=blocks)


def test_candidates_are_judged_and_their_kv_is_stored(wire: Wire) -> None:
    wire.load(model_path())
    judged = wire.ask(2, "rank", seconds=60.0)["result"]
    gains = dict(zip(SOURCES, judged["gains"], strict=True))
    assert max(gains, key=gains.__getitem__) == "src/auth.py"
    assert judged["computed"] == 3
    assert wire.ask(3)["result"]["tokens"]["prefilled"] == 0


def test_cancelling_ends_the_question_not_the_child(wire: Wire) -> None:
    wire.load(model_path())
    wire.send({"method": "cancel", "params": {"id": 2}})
    assert wire.ask(2, max_tokens=400)["error"]["code"] == "cancelled"
    assert wire.ask(3)["result"]["tokens"]["generated"] == 8


def test_errors_are_answers(wire: Wire, tmp_path: Path) -> None:
    assert wire.ask(1)["error"]["code"] == "usage"
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\0" * 100)
    assert wire.load(bad)["error"]["code"] == "model"
    assert wire.call(3, "nonsense")["error"]["code"] == "failed"
    assert wire.load(model_path(), pool_bytes=1)["error"]["code"] == "usage"
    refused = wire.load(model_path(), pool_bytes=1 << 50)["error"]
    assert (refused["code"], refused["message"].partition(":")[0]) == ("usage", f"pool_bytes = {1 << 50} can't be had")
    assert "set pool_bytes to at most" in refused["hint"]
    assert wire.load(model_path(), reuse=False)["result"]["reuse_reason"] == "switched off in the settings"
    assert wire.ask(5)["result"]["tokens"]["prefilled"] > 100


def test_ends_when_the_daemon_is_gone(wire: Wire) -> None:
    wire.load(model_path())
    assert wire.process.stdin is not None
    wire.process.stdin.close()
    assert wire.process.wait(10) == 0


def test_the_gates_choice_of_recomputed_tokens_is_the_default(wire: Wire, verdict: Verdict) -> None:
    loaded = wire.load(model_path(), recompute=-1, gate={**verdict.to_json(), "recompute": 8})["result"]
    assert checks(wire) == 0
    assert loaded["recompute"] == 8
    assert wire.ask(2)["result"]["tokens"]["recomputed"] == 8 * len(SOURCES)


@pytest.mark.parametrize("reuse", ["prefix-only", "off"])
def test_a_model_that_failed_the_gate_computes_everything(wire: Wire, verdict: Verdict, reuse: str) -> None:
    known = {**verdict.to_json(), "reuse": reuse, "reason": "answers differ", "figures": None}
    loaded = wire.load(model_path(), gate=known)["result"]
    assert (loaded["reuse"], loaded["reuse_reason"], loaded["gate"]) == (reuse, "answers differ", known)
    result = wire.ask(2)["result"]
    assert result["tokens"]["prefilled"] == result["tokens"]["recalled"] > 100
    assert wire.ask(3, reuse=False)["result"]["answer"] == result["answer"] != ""
    assert wire.store.stats()["blocks"] == 0


def test_short_headers_leave_fewer_tokens_to_compute(wire: Wire, tmp_path: Path) -> None:
    # Without reuse: with it, the other prompt would have to pass the gate first.
    wire.load(model_path(), reuse=False)
    usual = wire.ask(2)["result"]["tokens"]
    with closing(Wire(tmp_path / "other.db")) as other:
        other.load(model_path(), reuse=False, short_headers=True)
        short = other.ask(2)["result"]["tokens"]
    assert short["recalled"] == usual["recalled"]
    assert short["fresh"] < usual["fresh"] - 15


def test_steps_say_where_the_time_went(wire: Wire) -> None:
    wire.load(model_path())
    first, hot = wire.ask(2)["result"], wire.ask(3)["result"]
    assert first["steps_ms"]["prefill"] > 0 == hot["steps_ms"]["prefill"]
    for result in (first, hot):
        steps, times = result["steps_ms"], result["timings_ms"]
        loading = sum(steps[name] for name in ("read", "decompress", "dequantize", "rotate", "set"))
        assert times["load"] == pytest.approx(loading, abs=0.1)
        assert min(steps[name] for name in ("rotate", "set", "heads", "question")) > 0
        assert sum(steps.values()) <= times["ttft"] + 1
