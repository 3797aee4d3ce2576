"""Trees that are large: time and memory stay within bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FILES = 20_000

_RUN = """
import json, resource, sys, time
from pathlib import Path
from kvd.config import Settings
from kvd.service.indexer import Means, update_index

def run():
    started = time.monotonic()
    summary = update_index(Path(sys.argv[1]), Settings(), lambda progress: None, lambda: False, Means(None, 0.05))
    return {**summary.to_json(), "took": time.monotonic() - started}

runs = [run(), run()]
peak = [resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({"runs": runs, "peak": peak}))
"""


@pytest.mark.slow
def test_twenty_thousand_files_and_a_huge_one(tmp_path: Path) -> None:
    for number in range(FILES):
        folder = tmp_path / f"p{number // 200}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number}.py").write_text(f"def function_{number}(value):\n    return value + {number}\n")
        os.utime(folder / f"f{number}.py", (0, 0))
    with (tmp_path / "huge.sql").open("wb") as file:
        for _ in range(38):
            file.write(b"INSERT INTO t VALUES (1);\n" * 40_000)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    done = subprocess.run([sys.executable, "-c", _RUN, str(tmp_path)], capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    first, again = result["runs"]
    assert (first["files"], first["chunks"], first["skipped"]) == (FILES, FILES, {"too large": 1})
    assert again["unchanged"] == FILES
    assert first["took"] < 120
    assert again["took"] < 10
    assert max(result["peak"]) < 400_000_000
