"""What clients of a daemon see, counted, and the daemon's own metrics to compare it with."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from kvd.errors import CancelledError, KvdError
from kvd.rpc.client import Client

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """The samples of a text exposition by name and labels; each may be there once."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type != "unknown"
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def by_label(samples: Samples, name: str, *labels: str) -> dict[Any, float]:
    """Values of `name` by its labels: a text where one label is asked for, a tuple of more."""
    found = {}
    for (sample, pairs), value in samples.items():
        if sample == name:
            key = tuple(dict(pairs)[label] for label in labels)
            found[key[0] if len(key) == 1 else key] = value
    return found


def single(samples: Samples, name: str) -> float:
    return samples[name, frozenset()]


class Tally:
    """Requests by (method, outcome) and tokens of answers, as clients saw them; for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.tokens: Counter[str] = Counter()
        self.answers = 0

    def connect(self) -> Client:
        client = Client.connect()
        self._count("initialize", "ok")
        return client

    def _count(self, method: str, outcome: str) -> None:
        with self._lock:
            self.requests[method, outcome] += 1

    def call(self, client: Client, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result, or {} where it is an error."""
        try:
            result = client.call(method, params, timeout=120.0)
        except KvdError as error:
            self._count(method, error.code)
            return {}
        self._count(method, "ok")
        if method == "ask":
            with self._lock:
                self.tokens.update(result["tokens"])
                self.answers += result["model"] is not None
        return result

    def cancel(self, client: Client, params: dict[str, Any]) -> None:
        """Ask, and cancel at the first token."""

        def interrupt(value: dict[str, Any]) -> None:
            if value["kind"] == "token":
                raise KeyboardInterrupt

        try:
            client.call("ask", params, interrupt, timeout=120.0)
        except CancelledError:
            self._count("ask", "cancelled")
        else:
            raise AssertionError("it was not cancelled")

    def agrees(self, samples: Samples) -> bool:
        """Do the daemon's counters say the same? Requests for metrics themselves are left out."""
        found = by_label(samples, "kvd_requests_total", "method", "outcome")
        counted = {key: value for key, value in found.items() if key[0] != "metrics"}
        tokens = by_label(samples, "kvd_prompt_tokens_total", "source")
        told = {name: count for name, count in self.tokens.items() if name != "recalled"}
        return counted == self.requests and all(tokens[name] == told.get(name, 0) for name in tokens)


def metrics(client: Client) -> Samples:
    return parsed(str(client.call("metrics", {}, timeout=15.0)["text"]))


def run_all(*bodies: Any) -> None:
    """Run functions beside each other; the first failure is raised."""
    failures: list[BaseException] = []

    def guarded(body: Any) -> None:
        try:
            body()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240.0)
        assert not thread.is_alive()
    if failures:
        raise failures[0]
