"""`kvd doctor` as people run it: a real daemon, real libraries, the small real model."""

from __future__ import annotations

import json
import re
from pathlib import Path

from kvd import paths
from tests.conftest import Kvd, use_model

_PARTS = [
    *("python", "settings", "memory", "disk", "folders", "sqlite", "sqlite-vec", "torch", "llama.cpp", "gpu"),
    *("daemon", "watches", "model", "reuse", "device"),
]


def test_a_sound_machine(kvd: Kvd) -> None:
    done = kvd.run("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines if not line.startswith(" ")] == _PARTS
    assert re.search(r"^ok +model +smollm2-135m, loads in [\d.]+ s", done.stdout, re.MULTILINE)
    assert re.search(r"^ok +device .*weights 0\.\d\d GB, 8,192 cells 0\.19 GB, hot pool", done.stdout, re.MULTILINE)


def test_every_fault_has_its_line_and_its_hint(kvd: Kvd, isolated_home: Path) -> None:
    file = isolated_home / "broken.gguf"
    file.write_bytes(b"GGUF and nothing else")
    use_model("broken", file)
    paths.config_file().parent.mkdir(parents=True)
    paths.config_file().write_text("budget = 'much'\n")
    done = kvd.run("doctor", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    faults = {item["part"]: item for item in told["findings"] if item["verdict"] == "fault"}
    assert set(faults) == {"settings", "model"}
    assert "budget must be a whole number" in faults["settings"]["text"]
    assert str(file) in faults["model"]["text"]
    assert all(item["hint"] for item in faults.values())
    assert told["error"] == {"code": "failed", "message": "2 faults found", "hint": faults["settings"]["hint"]}
