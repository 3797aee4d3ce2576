"""Real git repositories for the tests of this folder."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Git = Callable[..., bytes]


@pytest.fixture
def git() -> Git:
    """Run git in a folder; fails the test when git fails."""

    def run(folder: Path, *arguments: str) -> bytes:
        command = ["git", "-c", "protocol.file.allow=always", "-C", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True).stdout

    return run
