from __future__ import annotations

from pathlib import Path

from kvd.config import Settings
from kvd.recall.rank import search
from kvd.recall.unshown import unshown_names
from kvd.service.indexer import update_index

FILES = {
    "pager.py": "def echo_via_pager(text):\n    PagerView\n    lost(text)\n    return run_pager(strip_ansi(text))\n",
    "run.py": "def run_pager(text):\n    return spawn(text)\n",
    "ansi.py": "def strip_ansi(text):\n    return text\n\n\nclass PagerView:\n    pass\n",
    "spawn.py": "def spawn(text):\n    return text\n",
    **{f"many{number}.py": "def text(value):\n    return value\n" for number in range(6)},
}


def test_names_that_are_called_come_first_and_shown_ones_not_at_all(tmp_path: Path, isolated_home: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    update_index(tmp_path, Settings(), lambda progress: None, lambda: False)
    (pager,) = search(tmp_path, "echo_via_pager", 1)
    assert pager.chunk.path == "pager.py"
    # `lost` is defined nowhere, `text` in too many places.
    assert unshown_names(tmp_path, [pager], 9) == ["run_pager", "strip_ansi", "PagerView"]
    assert unshown_names(tmp_path, [pager], 2) == ["run_pager", "strip_ansi"]
    (run,) = search(tmp_path, "def run_pager", 1)
    assert unshown_names(tmp_path, [pager, run], 9) == ["strip_ansi", "spawn", "PagerView"]
    assert unshown_names(tmp_path, [], 9) == []
