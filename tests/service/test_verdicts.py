from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvd.service.verdicts import Verdicts
from tests.test_regular import put

VERDICT = {
    "key": "k",
    "reuse": "on",
    "reason": "",
    "recompute": 4,
    "figures": {"kl": 0.1, "top1": 0.9, "first_kl": 0.2, "tokens": 80},
}
OFF = {**VERDICT, "reuse": "off", "reason": "recurrent", "figures": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gate.json"


def test_what_is_put_is_got_by_another(path: Path) -> None:
    Verdicts(path).put("a", VERDICT)
    Verdicts(path).put("b", OFF)
    assert Verdicts(path).get("a") == VERDICT
    assert Verdicts(path).get("b") == OFF
    assert Verdicts(path).get("c") is None
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_model_has_one_verdict(path: Path) -> None:
    verdicts = Verdicts(path)
    verdicts.put("a", VERDICT)
    verdicts.put("a", OFF)
    assert verdicts.get("a") == OFF


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"format": 2, "models": {"a": {}}}',
        b'{"format": 1, "models": []}',
        json.dumps({"format": 1, "models": {"a": {**VERDICT, "recompute": "4"}}}).encode(),
        json.dumps({"format": 1, "models": {"a": VERDICT}}).replace("0.9", "NaN").encode(),
        json.dumps({"format": 1, "models": {"a": VERDICT}}).replace("0.9", "1e999").encode(),
        json.dumps({"format": 1, "models": {"a": {**VERDICT, "figures": {"kl": 1.0}}}}).encode(),
        json.dumps({"format": 1, "models": {"a": {**VERDICT, "figures": [1]}}}).encode(),
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format": 1, "models": ' + b"9" * 5_000 + b"}",
        json.dumps({"format": 1, "models": {"a": VERDICT}}).replace("80", "1" + "0" * 400).encode(),
        b" " * 1_000_001 + json.dumps({"format": 1, "models": {"a": VERDICT}}).encode(),
    ],
)
def test_a_file_that_is_no_such_file_says_nothing(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    verdicts = Verdicts(path)
    assert verdicts.get("a") is None
    verdicts.put("a", VERDICT)
    assert verdicts.get("a") == VERDICT


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_at_all_says_nothing(path: Path, kind: str) -> None:
    put(path, kind)
    verdicts = Verdicts(path)
    assert verdicts.get("a") is None
    verdicts.put("a", VERDICT)
    assert verdicts.get("a") == VERDICT


def test_the_oldest_go_when_there_are_many(path: Path) -> None:
    verdicts = Verdicts(path)
    for number in range(103):
        verdicts.put(str(number), VERDICT)
    assert verdicts.get("2") is None
    assert verdicts.get("3") == verdicts.get("102") == VERDICT


def test_a_folder_that_can_not_be_written_costs_only_the_verdict(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path / "missing" / "gate.json")
    verdicts.put("a", VERDICT)
    assert verdicts.get("a") is None
