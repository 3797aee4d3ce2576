"""The watch of a real daemon, as its user sees it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvd.recall.rank import search
from kvd_cli.states import _watch_words
from tests.conftest import Kvd, poll

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are events on Linux only")


def test_a_new_daemon_watches_what_was_used_lately(kvd: Kvd, repository: Path) -> None:
    kvd.ok("index", str(repository))
    kvd.ok("stop")
    (repository / "src" / "session.py").write_text("def changed_meanwhile(): pass\n")
    kvd.ok("start")

    def found(name: str) -> bool:
        return any(name in hit.chunk.text for hit in search(repository, name, 3))

    poll(lambda: found("changed_meanwhile"))
    (repository / "src" / "session.py").write_text("def changed_again(): pass\n")
    poll(lambda: found("changed_again"))
    assert ", watched" in kvd.ok("status")
    text = kvd.ok("metrics")
    assert 'kvd_watched_repositories{how="events"} 1.0' in text
    assert 'kvd_background_updates_total{result="failed"} 0.0' in text
    assert kvd.ok("stop") == "stopped\n"
    assert "error" not in kvd.ok("logs").lower()


def test_the_status_says_why_not() -> None:
    assert _watch_words(None) == ""
    assert _watch_words({"state": "watched", "why": "", "folders": 3}) == ", watched"
    assert _watch_words({"state": "polled", "why": "nfs4", "folders": 0}) == ", polled (nfs4)"
    assert _watch_words({"state": "off", "why": "not used lately", "folders": 0}) == ", not watched (not used lately)"
