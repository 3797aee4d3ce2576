"""What a command costs beside the daemon's work: `python tests/bench/overhead.py FOLDER "a query"`.

`kvd search` against the warm daemon of this environment, which is started where there is none, and what of it are
the interpreter and the imports. Wall time, medians; the rounds of all are interleaved.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

ROUNDS = 15
_IMPORTS = "import typer, kvd_cli.app, kvd.rpc.client, kvd_cli.text, json"


def measure(folder: str, query: str) -> dict[str, float]:
    """Milliseconds of each part, and of the daemon's own work as it says."""
    search = [sys.executable, "-m", "kvd_cli.main", "search", query, "--repo", folder, "--json"]
    commands = {
        "interpreter": [sys.executable, "-c", "pass"],
        "interpreter and imports": [sys.executable, "-c", _IMPORTS],
        "kvd search": search,
    }
    timed(search)
    times: dict[str, list[float]] = {name: [] for name in (*commands, "in the daemon")}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            milliseconds, output = timed(command)
            times[name].append(milliseconds)
        times["in the daemon"].append(float(json.loads(output)["timings_ms"]["total"]))
    return {name: round(statistics.median(values), 1) for name, values in times.items()}


def timed(command: Sequence[str]) -> tuple[float, str]:
    """Milliseconds that a command takes, and what it prints."""
    started = time.perf_counter()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return (time.perf_counter() - started) * 1000, done.stdout


if __name__ == "__main__":
    for name, milliseconds in measure(*sys.argv[1:3]).items():
        print(f"{name:>24}: {milliseconds:7.1f} ms")
