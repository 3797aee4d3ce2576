"""What the doctor makes of the daemon's status."""

from __future__ import annotations

from typing import Any

import pytest

from kvd.doctor import daemon


def status(*watches: tuple[str, str]) -> dict[str, Any]:
    return {"indexes": [{"watch": {"state": state, "why": why, "folders": 0}} for state, why in watches]}


def test_watched_repositories_are_counted() -> None:
    found = daemon.watches(status(("watched", ""), ("off", "not used lately")))
    assert (found.verdict, found.text) == ("ok", "repositories: 1 by events")


@pytest.mark.parametrize("limit", ["max_user_watches", "max_user_instances"])
def test_a_limit_of_the_system_can_be_raised(limit: str) -> None:
    found = daemon.watches(status(("watched", ""), ("polled", f"the system has none left (fs.inotify.{limit})")))
    assert found.verdict == "note"
    assert f"sudo sysctl fs.inotify.{limit}=" in found.hint


def test_what_gives_no_events_is_polled_and_that_is_all() -> None:
    found = daemon.watches(status(("polled", "nfs tells nothing of others' changes")))
    assert found.verdict == "ok"
    assert "nfs" in found.text
