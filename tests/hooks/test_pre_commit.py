"""What the pre-commit framework reads of this repository; `pre-commit validate-manifest` takes it too."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from kvd.hooks.script import EVENTS

MANIFEST = Path(__file__).parents[2] / ".pre-commit-hooks.yaml"


def test_the_hook_is_for_the_events_that_kvd_installs_hooks_for() -> None:
    (hook,) = yaml.safe_load(MANIFEST.read_text("utf-8"))
    assert set(hook) == {
        *("id", "name", "description", "entry", "language", "stages"),
        *("always_run", "pass_filenames", "minimum_pre_commit_version"),
    }
    assert (hook["id"], hook["language"]) == ("kvd", "system")
    assert hook["stages"] == list(EVENTS)
    assert hook["always_run"] is True
    assert hook["pass_filenames"] is False


def test_whoever_has_no_kvd_is_not_troubled(isolated_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hook,) = yaml.safe_load(MANIFEST.read_text("utf-8"))
    monkeypatch.setenv("PATH", "/nonexistent")
    command = ["/bin/sh", *shlex.split(hook["entry"])[1:]]
    done = subprocess.run(command, cwd=isolated_home, capture_output=True, timeout=30.0, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
