"""The metrics of a real daemon with the scripted engine, against what its clients counted themselves."""

from __future__ import annotations

import asyncio
import json
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvd import paths
from kvd.daemon.connection import Connection, Emit
from kvd.errors import KvdError
from kvd.rpc import framing, messages
from kvd.rpc.messages import Request
from tests.conftest import FakeDaemon, Kvd, poll
from tests.counting import Samples, Tally, by_label, metrics, parsed, run_all, single

LOOKUPS = {"hit": 9, "miss": 1}
"""What the scripted engine counts for each question."""


def ask(question: str, repository: Path, **more: Any) -> dict[str, Any]:
    return {"question": f"{question} session expired", "repo": str(repository), **more}


def test_many_clients_at_once_are_counted_exactly(fake_daemon: FakeDaemon, repository: Path) -> None:
    # One at a time, so that an engine's death is the end of one question.
    paths.config_file().parent.mkdir(parents=True)
    paths.config_file().write_text("parallel = 1\n")
    tally = Tally()

    def one(number: int) -> None:
        with tally.connect() as client:
            for _ in range(3):
                tally.call(client, "ask", ask("say", repository))
                tally.call(client, "search", {"query": "session", "repo": str(repository)})
            tally.call(client, "ask", ask("fail", repository))
            tally.call(client, "ask", ask("die SIGKILL", repository))
            tally.call(client, "ask", ask("say", repository, top_k=0))
            tally.call(client, "ask", {"question": "session", "repo": "/dev/null"})
            tally.call(client, "status", {})
            tally.call(client, "index", {"path": str(repository), "background": number % 2 == 0})
            tally.cancel(client, ask("slow", repository))
            tally.call(client, "ask", ask("say", repository))

    run_all(*(partial(one, number) for number in range(6)))
    with tally.connect() as client:
        poll(lambda: tally.agrees(metrics(client)))
        samples = metrics(client)
    assert tally.requests["ask", "ok"] == 24
    assert tally.requests["ask", "unavailable"] == tally.requests["ask", "cancelled"] == 6
    # Each question that reached the engine, whether it was answered or not, in seven children.
    reached = sum(tally.requests["ask", outcome] for outcome in ("ok", "model", "unavailable", "cancelled"))
    assert by_label(samples, "kvd_block_requests_total", "tier", "result") == {
        ("cells", "hit"): 0,
        ("cells", "miss"): reached * 10,
        **{("hot", result): reached * count for result, count in LOOKUPS.items()},
        **{("cold", result): 0 for result in ("hit", "miss", "declined")},
    }
    assert single(samples, "kvd_ttft_seconds_count") == tally.answers == 24
    times = by_label(samples, "kvd_request_seconds_count", "method")
    for method, count in times.items():
        requests = by_label(samples, "kvd_requests_total", "method", "outcome")
        assert count == sum(value for (name, _), value in requests.items() if name == method)


def test_what_is_refused_is_counted_too(fake_daemon: FakeDaemon, repository: Path) -> None:
    tally = Tally()
    with tally.connect() as client, tally.connect() as other:
        tally.call(client, "ask", {})
        assert tally.requests["ask", "usage"] == 1
        for _ in range(2):
            with pytest.raises(KvdError):
                client.call("/home/me/secret", {})
        samples = metrics(other)
        assert by_label(samples, "kvd_requests_total", "method", "outcome")["unknown", "failed"] == 2
        client._send(messages.request(1000, "ask", ask("slow", repository)))
        client._send(messages.request(1000, "search", {}))
        poll(lambda: ("search", "failed") in by_label(metrics(other), "kvd_requests_total", "method", "outcome"))


def is_counter(name: str) -> bool:
    return name.endswith(("_total", "_count", "_sum", "_bucket"))


def test_counters_never_go_down_though_engines_die(fake_daemon: FakeDaemon, repository: Path) -> None:
    tally = Tally()
    before: Samples = {}
    with tally.connect() as client:
        for question in ("say", "die SIGKILL", "die SIGSEGV", "garbage", "say", "store", "die SIGKILL", "say"):
            tally.call(client, "ask", ask(question, repository))
            samples = metrics(client)
            for key, value in before.items():
                assert not is_counter(key[0]) or samples[key] >= value, key
            before = samples
        assert tally.requests == {("initialize", "ok"): 1, ("ask", "ok"): 4, ("ask", "unavailable"): 4}
        lookups = by_label(before, "kvd_block_requests_total", "tier", "result")
        assert lookups["hot", "hit"] == 8 * LOOKUPS["hit"]
        poll(lambda: single(metrics(client), "kvd_written_blocks_total") == 2)
        samples = metrics(client)
    assert by_label(samples, "kvd_dropped_blocks_total", "reason") == {"damaged": 1, "unwritten": 0}
    assert by_label(samples, "kvd_kv_blocks", "tier") == {"cells": 0, "hot": 1, "cold": 1}
    assert by_label(samples, "kvd_kv_bytes", "tier") == {"cells": 0, "hot": 10, "cold": 3}


def test_an_engine_whose_pool_is_broken_is_counted_and_replaced(
    kvd: Kvd, fake_daemon: FakeDaemon, repository: Path
) -> None:
    tally = Tally()
    with tally.connect() as client:
        assert tally.call(client, "ask", ask("broken", repository))["answer"]
        poll(lambda: single(metrics(client), "kvd_integrity_failures_total") == 1)
        poll(lambda: bool(client.call("status", {})["engine"]["state"] == "stopped"))
        assert tally.call(client, "ask", ask("say", repository))["answer"]
        samples = metrics(client)
    assert single(samples, "kvd_integrity_failures_total") == 1
    assert single(samples, "kvd_pool_utilization_ratio") == 0.01
    assert "its KV in memory is broken, so it ends: a page is lost" in kvd.ok("logs")


def test_gauges_follow_the_engine(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    tally = Tally()
    with tally.connect() as client, tally.connect() as asking:
        tally.call(client, "ask", ask("say", repository))
        chunks = sum(index["chunks"] for index in client.call("status", {})["indexes"])
        assert single(metrics(client), "kvd_index_chunks") == chunks > 0
        # A busy engine is as it was after the question before.
        asking._send(messages.request(1000, "ask", ask("slow", repository)))
        poll(lambda: bool(client.call("status", {})["engine"]["state"] == "busy"))
        assert by_label(metrics(client), "kvd_kv_blocks", "tier")["hot"] == 1
        asking._send(messages.request(None, messages.CANCEL, {"id": 1000}))
        tally.call(client, "ask", ask("die SIGKILL", repository))
        samples = metrics(client)
    assert by_label(samples, "kvd_kv_blocks", "tier")["hot"] == 0
    assert single(samples, "kvd_pool_utilization_ratio") == 0
    assert by_label(samples, "kvd_device_memory_bytes", "device") == {"host": 0}


def test_the_status_and_the_command_have_the_same(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    kvd.ok("ask", "say session expired", "--repo", str(repository))
    with Tally().connect() as client:
        result = client.call("metrics", {})
        samples = {
            (name, frozenset(sample["labels"].items())): sample["value"]
            for name, found in result["metrics"].items()
            for sample in found
        }
    assert samples == parsed(result["text"])
    assert set(kvd.json("status")["metrics"]) == set(kvd.json("metrics")["metrics"]) == set(result["metrics"])
    for words in (str(repository), "session", "expired"):
        assert words not in json.dumps(result)


def test_a_request_cancelled_before_it_began_is_answered_and_counted() -> None:
    async def handle(request: Request, emit: Emit) -> dict[str, Any]:
        raise AssertionError("it was cancelled")

    async def main() -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        refused: list[tuple[str, str]] = []
        connection = Connection(reader, writer, handle, lambda request, f: refused.append((request.method, f.code)))
        for message in (messages.request(7, "ask", {}), messages.request(None, messages.CANCEL, {"id": 7})):
            connection._receive(json.dumps(message).encode())
        await connection.cancel_all()
        assert refused == [("ask", "cancelled")]
        await writer.drain()
        writer.close()
        with theirs:
            theirs.settimeout(5.0)
            body = framing.SocketReader(theirs).read_body()
        assert body is not None
        assert framing.decode(body)["error"]["data"]["code"] == "cancelled"

    asyncio.run(main())
