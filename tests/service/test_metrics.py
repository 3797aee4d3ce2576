from __future__ import annotations

from pathlib import Path

from kvd.rpc import framing
from kvd.service.asker import TOKEN_KINDS
from kvd.service.metrics import PROMPT_SOURCES, Metrics
from kvd.worker.protocol import COUNTERS
from tests.counting import by_label, parsed, single

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")
LABELS = {"method", "outcome", "source", "tier", "result", "direction", "reason", "device", "version", "le", "how"}


def test_counts_of_one_engine_outlive_it() -> None:
    metrics = Metrics()
    first, second = metrics.new_engine(), metrics.new_engine()
    for counts in ({"hot_hit": 3, "hot_evicted": 1}, {"hot_hit": 3}, {"hot_hit": 5, "unknown": 7}, {}):
        first(counts)
    second({"hot_hit": 2, "hot_evicted": 4})
    # Less than before: nothing is taken back.
    first({"hot_hit": 1})
    samples = parsed(metrics.exposition())
    assert by_label(samples, "kvd_block_requests_total", "tier", "result")["hot", "hit"] == 7
    assert by_label(samples, "kvd_evictions_total", "tier", "reason")["hot", "capacity"] == 5
    assert by_label(samples, "kvd_swaps_total", "direction") == {"in": 0, "out": 5}


def test_every_counter_of_an_engine_is_shown() -> None:
    for name in COUNTERS:
        metrics = Metrics()
        before = parsed(metrics.exposition())
        metrics.new_engine()({name: 3})
        after = parsed(metrics.exposition())
        grown = {key for key, value in after.items() if value != before[key]}
        assert grown, name
        assert {after[key] for key in grown} == {3}


def test_sources_are_the_kinds_of_tokens_but_the_sum() -> None:
    assert set(PROMPT_SOURCES) == set(TOKEN_KINDS) - {"recalled"}


def test_what_the_status_does_not_know_stays() -> None:
    metrics = Metrics()
    stored = {"file_bytes": 9, "payload_bytes": 7, "blocks": 2, "written_blocks": 5}
    indexes = [{"chunks": 3, "pending_vectors": 0}, {"chunks": 4, "pending_vectors": 2}]
    metrics.observe({"state": "stopped"}, stored, indexes)
    metrics.observe({"state": "stopped"}, {"written_blocks": 6}, None)
    samples = parsed(metrics.exposition())
    assert (single(samples, "kvd_store_bytes"), single(samples, "kvd_index_chunks")) == (9, 7)
    assert single(samples, "kvd_index_pending_vectors") == 2
    assert single(samples, "kvd_written_blocks_total") == 6
    assert by_label(samples, "kvd_kv_blocks", "tier")["cold"] == 2


def test_names_labels_and_documentation() -> None:
    metrics = Metrics()
    metrics.count_request("ask", "ok", 0.1)
    text = metrics.exposition()
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            name, kind = line.split()[2:]
            assert name.startswith("kvd_")
            assert name.endswith("_total") == (kind == "counter")
            assert f"`{name}" in DOCUMENT
    assert {label for _, pairs in parsed(text) for label, _ in pairs} <= LABELS
    framing.encode(metrics.to_json())
