from __future__ import annotations

import subprocess
from pathlib import Path

from .indexing import measure


def test_it_measures_and_leaves_the_tree_as_it_was(repository: Path) -> None:
    file = repository / "src" / "large.py"
    file.write_text("".join(f"def function_{number}():\n    return {number}\n" for number in range(200)))
    subprocess.run(["git", "-C", str(repository), "add", "."], check=True)
    text = file.read_text()
    result = measure(repository)
    assert file.read_text() == text
    assert result["files"] == 4
    assert isinstance(result["one_file_s"], float)
    assert 0 < result["one_file_s"] < 10
