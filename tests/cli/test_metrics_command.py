"""`kvd metrics` as people and scrapers run it."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import FakeDaemon, Kvd


def test_metrics_are_an_exposition(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    kvd.ok("ask", "say when is the session expired", "--repo", str(repository))
    families = {family.name: family for family in text_string_to_metric_families(kvd.ok("metrics"))}
    (tokens,) = (sample for sample in families["kvd_prompt_tokens"].samples if sample.labels["source"] == "reused_hot")
    assert (tokens.name, tokens.value) == ("kvd_prompt_tokens_total", 90)
    assert {"labels": {"source": "fresh"}, "value": 20} in kvd.json("metrics")["metrics"]["kvd_prompt_tokens_total"]


def test_metrics_start_nothing(kvd: Kvd) -> None:
    done = kvd.run("metrics")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "kvd: no daemon runs, so nothing is counted\nhint: kvd start\n"
    assert kvd.json("metrics")["error"]["code"] == "unavailable"
    assert "not running" in kvd.ok("status")
