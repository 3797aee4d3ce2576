"""All that is looked at, in the order in which one thing needs another."""

from __future__ import annotations

from collections.abc import Iterator

from kvd.doctor import daemon, machine, native
from kvd.doctor.finding import Finding
from kvd.models.machine import probe


def examine() -> Iterator[Finding]:
    """Each finding as soon as it is there. Starts the daemon; no question is asked."""
    yield machine.python()
    settings, finding = daemon.settings()
    yield finding
    has = probe()
    yield machine.memory(has)
    yield machine.disk(settings)
    yield machine.folders()
    yield from native.sqlite()
    yield from native.torch()
    yield from native.llama(has.gpu)
    yield from native.embedder(settings.embedder)
    state, finding = daemon.state()
    yield finding
    if state is not None:
        yield daemon.watches(state)
    yield from daemon.model(state)
