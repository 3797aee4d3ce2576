"""How long git hooks keep git waiting: `python tests/bench/hooks.py`. Its repository, index and daemon are its own.

Commits with and without kvd's hooks take turns, so that what else the machine does falls on both.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROUNDS = 101
_FILES = 50


def measure(root: Path) -> dict[str, object]:
    """Milliseconds, least, median and 95th percentile of `ROUNDS`; `root` is a repository with hooks and an index."""
    hook = root / ".git" / "hooks" / "post-commit"
    commit = ["git", "-C", str(root), "commit", "-q", "--allow-empty", "-m", "x"]
    ways: dict[str, Callable[[], None]] = {
        "commit": lambda: _run(["git", "-c", "core.hooksPath=/dev/null", *commit[1:]]),
        "commit_with_hook": lambda: _run(commit),
        "commit_with_first_hook": lambda: _run(commit),
        "sh": lambda: _run(["/bin/sh", "-c", ":"]),
        "hook": lambda: _run([str(hook)], root),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            if name == "commit_with_first_hook":
                # Nobody waits yet: it starts the process that does.
                (root / ".git" / "kvd-hook.pid").unlink(missing_ok=True)
            begun = time.perf_counter()
            way()
            times[name].append((time.perf_counter() - begun) * 1000)
    return {
        **{name: [round(value, 2) for value in _told(sorted(of))] for name, of in times.items()},
        "load": [round(load, 1) for load in os.getloadavg()],
    }


def _told(times: list[float]) -> tuple[float, float, float]:
    return times[0], statistics.median(times), times[len(times) * 95 // 100]


def _run(command: list[str], cwd: Path | None = None) -> None:
    # Pipes: git is not to wait for them either.
    subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, check=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kvd-hooks-", dir="/tmp") as home:
        for name in [name for name in os.environ if name.startswith(("GIT_", "XDG_", "KVD_"))]:
            del os.environ[name]
        for kind in ("CACHE", "DATA", "CONFIG", "STATE"):
            os.environ[f"XDG_{kind}_HOME"] = f"{home}/{kind.lower()}"
        os.mkdir(f"{home}/run", mode=0o700)
        os.environ |= {"XDG_RUNTIME_DIR": f"{home}/run", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        root = Path(home, "repository")
        root.mkdir()
        for number in range(_FILES):
            (root / f"file_{number}.py").write_text(f"def function_{number}():\n    return {number}\n")
        _run(["git", "init", "-q"], root)
        for name in ("name", "email"):
            _run(["git", "config", f"user.{name}", "test"], root)
        _run(["git", "add", "."], root)
        kvd = [sys.executable, "-m", "kvd_cli.main"]
        _run([*kvd, "index"], root)
        try:
            _run([*kvd, "hooks", "install"], root)
            print(json.dumps(measure(root)))
        finally:
            # What waits still would start another daemon.
            shutil.rmtree(f"{home}/cache/kvd/index")
            while (root / ".git" / "kvd-hook.pid").exists():
                time.sleep(0.1)
            _run([*kvd, "stop", "--now"], root)


if __name__ == "__main__":
    main()
