"""Which commit a work tree is at."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kvd.git import git_environment

_SECONDS = 5.0


def head_commit(root: Path) -> str:
    """The full name of the commit that is checked out; "" where there is none, or no git that says so."""
    command = ["git", "-C", str(root), "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        done = subprocess.run(
            command,
            env=git_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
