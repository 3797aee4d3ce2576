"""The measuring code, on the CPU with small shapes; what it says of a GPU is seen where there is one."""

from __future__ import annotations

import json

import pytest
import torch

from kvd.kv.codec import BLOCK_TOKENS
from kvd.types import KVShape
from tests.bench import device

SHAPE = KVShape(n_layer=2, width=256)
TOKENS = 2 * BLOCK_TOKENS + 10


def test_every_step_is_measured_on_the_cpu() -> None:
    about, *figures = device.measure(["cpu"], {"small": SHAPE}, [TOKENS], rounds=2)
    assert about["gpu"] == ""
    assert [figure["what"] for figure in figures] == ["dequantize+rotate", "pool to state", "restore"]
    for figure in figures:
        assert (figure["model"], figure["tokens"], figure["device"]) == ("small", TOKENS, "cpu")
        assert 0 < figure["best_ms"] <= figure["median_ms"]
        assert figure["bytes"] == TOKENS * SHAPE.bytes_per_token
        json.dumps(figure)
    head, *lines = device.table([about, *figures])
    assert len(lines) == 3
    assert {len(line) for line in lines} == {len(head)}


def test_blocks_cover_the_tokens() -> None:
    sizes = [len(payload.tokens) for payload in device.payloads(SHAPE, TOKENS)]
    assert sizes == [BLOCK_TOKENS, BLOCK_TOKENS, 10]


def test_the_first_round_does_not_count() -> None:
    calls: list[str] = []
    figure = device.timed(lambda: calls.append("work"), lambda: calls.append("finish"), 3)
    assert calls == ["finish", "work", "finish"] * 4
    assert figure["rounds"] == 3


def test_what_is_missing_for_llama_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gguf" else object())
    (figure,) = device.restores(SHAPE, TOKENS)
    assert figure["skipped"] == "gguf can't be imported here"
    assert len(device.table([figure])) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert device.main([]) == 2
    assert "torch sees no GPU here" in capsys.readouterr().err
