from __future__ import annotations

from pathlib import Path

import pytest

from . import overhead


@pytest.mark.usefixtures("kvd")
def test_the_parts_are_less_than_the_whole(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "ROUNDS", 3)
    times = overhead.measure(str(repository), "session")
    assert 0 < times["interpreter"] < times["interpreter and imports"] < times["kvd search"]
    assert 0 < times["in the daemon"] < times["kvd search"]
