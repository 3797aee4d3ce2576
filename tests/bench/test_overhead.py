from __future__ import annotations

from pathlib import Path

import pytest

from . import overhead


@pytest.mark.usefixtures("kvd")
def test_every_part_is_measured(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "ROUNDS", 1)
    times = overhead.measure(str(repository), "session")
    assert set(times) == {"interpreter", "interpreter and imports", "in the daemon", "kvd search"}
    assert all(time > 0 for time in times.values())
