"""How long indexing a tree takes: `python tests/bench/indexing.py FOLDER`. It has its own cache, and changes one file.

`git status` of the same tree is what a program has to do at least to know that nothing has changed.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kvd.config import Settings
from kvd.recall.embed import default_embedder
from kvd.recall.rank import search
from kvd.service.indexer import Means, fill_index, update_index
from kvd.source.cutter import WarmCutters
from kvd.types import IndexSummary

ROUNDS = 7
_INLINE_S = 0.05
"""As the daemon does it."""
_MARK = "kvd_probe"


def measure(root: Path) -> dict[str, object]:
    """Seconds, medians of `ROUNDS` where nothing else is said. `root` is resolved."""
    cutters = WarmCutters()

    def update() -> IndexSummary:
        means = Means(None, _INLINE_S, cutters)
        return update_index(root, Settings(), lambda progress: None, lambda: False, means)

    first, took = timed(update)
    before = os.times()
    _, vectors = timed(lambda: fill_index(root, default_embedder(), lambda: False))
    update()
    command = ["git", "-C", str(root), "status", "--porcelain"]
    status = [timed(lambda: subprocess.run(command, check=True, capture_output=True))[1] for _ in range(ROUNDS)]
    unchanged = [timed(update)[1] for _ in range(ROUNDS)]
    changed = one_file(root, update)
    cutters.close_if_idle()
    peak = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "files": first.files,
        "chunks": first.chunks,
        "searchable_s": round(took, 2),
        "cpu_s": round(before.user + before.system, 2),
        "cpu_children_s": round(os.times().children_user + os.times().children_system, 2),
        "vectors_s": round(vectors, 2),
        "git_status_s": round(statistics.median(status), 3),
        "no_change_s": round(statistics.median(unchanged), 3),
        "one_file_s": round(statistics.median(changed), 3),
        "peak_mb": [round(size) for size in peak],
        "load": [round(load, 1) for load in os.getloadavg()],
    }


def one_file(root: Path, update: Callable[[], IndexSummary]) -> list[float]:
    """Times from a file's change to its being found."""
    sources = (path for path in sorted(root.rglob("*.*")) if path.suffix in (".py", ".c", ".go", ".js", ".rs", ".java"))
    file = next(path for path in sources if path.is_file() and 3_000 < path.stat().st_size < 30_000)
    text = file.read_text()
    times = []
    try:
        for number in range(ROUNDS):
            file.write_text(f"{text}\n// {_MARK}_{number}\n")
            _, took = timed(update)
            assert search(root, f"{_MARK}_{number}", 1)[0].chunk.path == file.relative_to(root).as_posix()
            times.append(took)
    finally:
        file.write_text(text)
    return times


Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        print(json.dumps(measure(Path(sys.argv[1]).resolve()), indent=1))
