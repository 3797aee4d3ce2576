"""What the daemon counts and measures, in Prometheus' text exposition format or as JSON.

Counters never go down while the daemon lives, whatever becomes of its engine children. Labels hold no paths and
nothing of what was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.exposition import generate_latest

import kvd

PROMPT_SOURCES = ("resident", "reused_hot", "reused_cold", "recomputed", "prefilled", "fresh", "generated")
"""Kinds of an answer's `tokens`; `recalled` is the sum of the first five."""

_REQUEST_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
_TTFT_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)

Counts = Mapping[str, int]

# A sample with the time of creation for every counter, which nothing here needs.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped


class Metrics:
    """Belongs to one event loop: nothing is counted from other threads."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests answered, by outcome.", "method", "outcome")
        self._seconds = Histogram(
            "kvd_request_seconds",
            "Seconds from a request's arrival to its answer.",
            ["method"],
            registry=self._registry,
            buckets=_REQUEST_SECONDS,
        )
        self._ttft = Histogram(
            "kvd_ttft_seconds",
            "Seconds from a question's arrival to the first token of its answer, loading the model left out.",
            registry=self._registry,
            buckets=_TTFT_SECONDS,
        )
        tokens = self._counter("prompt_tokens", "Tokens of answered questions, by where they came from.", "source")
        self._tokens = {source: tokens.labels(source) for source in PROMPT_SOURCES}
        evictions = self._counter("evictions", "Blocks that left a tier for want of room.", "tier", "reason")
        self._of_engine = self._engine_counters(evictions)
        self._writes = _Growth(self._writer_counters(evictions))
        self._kv_bytes = self._gauge("kv_bytes", "Bytes of KV in a tier.", "tier")
        self._kv_blocks = self._gauge("kv_blocks", "KV blocks in a tier.", "tier")
        self._utilization = self._gauge("pool_utilization_ratio", "Share of the hot pool's pages that hold a block.")
        self._device = self._gauge("device_memory_bytes", "Memory in use where the engine runs.", "device")
        self._store_bytes = self._gauge("store_bytes", "Bytes of the cold store's files.")
        self._chunks = self._gauge("index_chunks", "Chunks in all indexes.")
        self._pending = self._gauge("index_pending_vectors", "Chunks in all indexes that have no vector yet.")
        self._watched = self._gauge("watched_repositories", "Repositories whose changes are noticed, by how.", "how")
        runs = self._counter("background_updates", "Updates of indexes that nobody asked for, by result.", "result")
        self._background_updates = {name: runs.labels(name) for name in ("changed", "unchanged", "failed")}
        Info("kvd_build", "Version of the daemon.", registry=self._registry).info({"version": kvd.__version__})
        self._set_engine({})

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"kvd_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"kvd_{name}", text, labels, registry=self._registry)

    def _engine_counters(self, evictions: Counter) -> dict[str, tuple[Counter, ...]]:
        """What grows with each of `kvd.worker.protocol.COUNTERS`."""
        lookups = self._counter("block_requests", "Look-ups of blocks in a tier, by result.", "tier", "result")
        swaps = self._counter("swaps", "Blocks loaded into the hot pool (in) and evicted from it (out).", "direction")
        return {
            "cells_hit": (lookups.labels("cells", "hit"),),
            # What the cells hold is not looked up in the pool.
            "hot_hit": (lookups.labels("hot", "hit"), lookups.labels("cells", "miss")),
            "hot_miss": (lookups.labels("hot", "miss"), lookups.labels("cells", "miss")),
            "cold_hit": (lookups.labels("cold", "hit"),),
            "cold_miss": (lookups.labels("cold", "miss"),),
            "cold_declined": (lookups.labels("cold", "declined"),),
            "swapped_in": (swaps.labels("in"),),
            "prefetched": (self._counter("prefetched_blocks", "Blocks loaded into the hot pool for drafts."),),
            "hot_evicted": (evictions.labels("hot", "capacity"), swaps.labels("out")),
            "integrity_failures": (self._counter("integrity_failures", "Engines that found their KV broken."),),
        }

    def _writer_counters(self, evictions: Counter) -> dict[str, tuple[Counter, ...]]:
        """What grows with each of `StoreWriter.counts`."""
        dropped = self._counter("dropped_blocks", "Blocks kept out of the cold store or taken out.", "reason")
        return {
            "written_blocks": (self._counter("written_blocks", "Blocks written to the cold store."),),
            "lost_blocks": (dropped.labels("unwritten"),),
            "dropped_damaged": (dropped.labels("damaged"),),
            "evicted_cap": (evictions.labels("cold", "cap"),),
            "evicted_foreign": (evictions.labels("cold", "foreign"),),
        }

    def count_request(self, method: str, outcome: str, seconds: float) -> None:
        """A request was answered; `outcome` is "ok" or the code of its error."""
        self._requests.labels(method, outcome).inc()
        self._seconds.labels(method).observe(seconds)

    def count_answer(self, result: Mapping[str, Any]) -> None:
        """A question was answered with `result`, that of the method `ask`."""
        for source, counter in self._tokens.items():
            counter.inc(result["tokens"][source])
        if result["model"] is not None:
            self._ttft.observe(result["timings_ms"]["ttft"] / 1000)

    def count_background_update(self, result: str) -> None:
        """An index was brought up to date without being asked for: "changed", "unchanged" or "failed"."""
        self._background_updates[result].inc()

    def new_engine(self) -> Callable[[Counts], None]:
        """A function that takes the counters of one engine child as that tells them: since its own start."""
        return _Growth(self._of_engine).update

    def observe(
        self, engine: Mapping[str, Any], store: Mapping[str, Any], indexes: Sequence[Mapping[str, Any]] | None
    ) -> None:
        """Take what is measured rather than counted from parts of the status; what those don't tell stays as it was."""
        self._set_engine(engine)
        self._writes.update(store)
        if "file_bytes" in store:
            self._store_bytes.set(store["file_bytes"])
        if "blocks" in store:
            self._kv_bytes.labels("cold").set(store["payload_bytes"])
            self._kv_blocks.labels("cold").set(store["blocks"])
        if indexes is not None:
            self._chunks.set(sum(index["chunks"] for index in indexes))
            self._pending.set(sum(index["pending_vectors"] for index in indexes))

    def observe_watching(self, counts: Counts) -> None:
        """Take how many repositories are watched by "events" and by "polling"."""
        for how, count in counts.items():
            self._watched.labels(how).set(count)

    def _set_engine(self, engine: Mapping[str, Any]) -> None:
        """Without an engine nothing is in memory."""
        pool, cells = engine.get("pool") or {}, engine.get("cells") or {}
        self._kv_bytes.labels("cells").set(cells.get("used_bytes", 0))
        self._kv_bytes.labels("hot").set(pool.get("used_bytes", 0))
        self._kv_blocks.labels("cells").set(cells.get("runs", 0))
        self._kv_blocks.labels("hot").set(pool.get("blocks", 0))
        self._utilization.set(pool["used_bytes"] / pool["bytes"] if pool else 0)
        self._device.clear()
        for device, used in {"host": 0, **engine.get("memory", {})}.items():
            self._device.labels(device).set(used)

    def exposition(self) -> str:
        """All of it in the text exposition format, version 0.0.4."""
        return generate_latest(self._registry).decode()

    def to_json(self) -> dict[str, list[dict[str, Any]]]:
        """Samples by name: `{"kvd_swaps_total": [{"labels": {"direction": "in"}, "value": 0}, ...]}`."""
        shown: dict[str, list[dict[str, Any]]] = {}
        for family in self._registry.collect():
            for sample in family.samples:
                value = int(sample.value) if sample.value.is_integer() else sample.value
                shown.setdefault(sample.name, []).append({"labels": sample.labels, "value": value})
        return shown


class _Growth:
    """Adds to counters what counts kept elsewhere have grown by since they were last told.

    A count that is missing or lower than before adds nothing.
    """

    def __init__(self, counters: Mapping[str, tuple[Counter, ...]]) -> None:
        self._counters = counters
        self._seen = dict.fromkeys(counters, 0)

    def update(self, counts: Counts) -> None:
        for name, counters in self._counters.items():
            grown = counts.get(name, 0) - self._seen[name]
            if grown > 0:
                self._seen[name] += grown
                for counter in counters:
                    counter.inc(grown)
