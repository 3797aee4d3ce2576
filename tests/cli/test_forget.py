"""`kvd forget`, on a real daemon."""

from __future__ import annotations

import shutil
from pathlib import Path

from kvd import paths
from kvd.service.recent import note_use
from tests.conftest import FakeDaemon, Kvd


def test_an_index_is_forgotten(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    kvd.ok("index", cwd=repository)
    kvd.ok("search", "session", cwd=repository)
    file = paths.index_file(repository)
    assert kvd.ok("forget", str(repository / "src")).startswith(f"removed the index of {repository} (")
    assert not list(file.parent.glob(f"{file.stem}*"))
    assert kvd.json("status")["indexes"] == []
    again = kvd.json("forget", str(repository))["error"]
    assert (again["code"], again["hint"]) == ("repository", "kvd status")
    # It is made anew when somebody asks.
    assert kvd.json("search", "session", cwd=repository)["sources"]


def test_an_index_of_a_folder_that_is_gone(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    kvd.ok("index", cwd=repository)
    note_use(repository)
    shutil.rmtree(repository)
    assert kvd.json("forget", str(repository))["freed_bytes"] > 0
    assert not paths.index_file(repository).exists()
