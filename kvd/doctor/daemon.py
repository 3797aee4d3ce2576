"""The daemon, and what it knows: settings, model, verdict, placement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvd import paths
from kvd.config import Settings, load_settings
from kvd.doctor import native
from kvd.doctor.finding import Finding, fault, note, ok
from kvd.errors import KvdError, NoModelError
from kvd.models.active import ActiveModel, active_model
from kvd.rpc.client import Client

_STATUS_SECONDS = 15.0
_LIMITS = {"max_user_watches": 524_288, "max_user_instances": 512}
"""Of `fs.inotify`, with what many systems set them to."""


def settings() -> tuple[Settings, Finding]:
    """The user's settings, or the defaults where they can't be read."""
    file = paths.config_file()
    try:
        found = load_settings()
    except KvdError as error:
        return Settings(), fault("settings", error.message, error.hint)
    return found, ok("settings", str(file) if file.exists() else f"the defaults; there is no {file}")


def state() -> tuple[dict[str, Any] | None, Finding]:
    """The daemon's status, which is started where it does not run."""
    try:
        with Client.connect() as client:
            found = client.call("status", {}, timeout=_STATUS_SECONDS)
    except KvdError as error:
        return None, fault("daemon", error.message, error.hint or "kvd logs")
    daemon = found["daemon"]
    return found, ok("daemon", f"kvd {daemon['version']}, pid {daemon['pid']}, listens at {paths.socket_file()}")


def watches(found: dict[str, Any]) -> Finding:
    """Whether changes are noticed by events, in the repositories that the daemon looks after."""
    watched = [index["watch"] for index in found["indexes"]]
    polled = [watch["why"] for watch in watched if watch["state"] == "polled"]
    count = sum(watch["state"] == "watched" for watch in watched)
    text = f"repositories: {count} by events" + (f", {len(polled)} by polling ({polled[0]})" if polled else "")
    for name, enough in _LIMITS.items():
        if any(name in why for why in polled):
            return note("watches", text, f"sudo sysctl fs.inotify.{name}={enough}")
    return ok("watches", text)


def model(found: dict[str, Any] | None) -> Iterator[Finding]:
    """The model in use, tried; then whether its KV is reused, and where all of it goes."""
    try:
        active = active_model()
    except NoModelError as error:
        yield fault("model", error.message, error.hint)
        return
    except KvdError as error:
        yield fault("model", error.message, error.hint or "kvd setup")
        return
    try:
        tried = native.try_model(active)
    except native.TrialError as error:
        yield fault("model", f"{active.name} ({active.path}): {error}", error.hint)
        return
    yield ok("model", f"{active.name}, loads in {tried['load_ms'] / 1000:.1f} s, {active.path}")
    if found is not None:
        yield _reuse(found, active)
    yield _memory_split(tried, found["engine"] if found else {})


def _reuse(found: dict[str, Any], active: ActiveModel) -> Finding:
    """The gate's verdict with its figures."""
    gate = (found["model"] or {}).get("gate")
    if not found["reuse_setting"]:
        return note(
            "reuse", "off in the settings: every prompt is computed whole", f"set reuse = true in {paths.config_file()}"
        )
    if gate is None:
        return ok("reuse", f"not checked yet with {active.name}: the first question does it once")
    figures = gate["figures"]
    measured = f"; KL {figures['kl']:.3f}, {figures['top1']:.0%} same tokens" if figures else ""
    if gate["reuse"] == "on":
        return ok("reuse", f"on{measured}, the first {gate['recompute']} tokens of a chunk recomputed")
    return note("reuse", f"{gate['reuse']}: {gate['reason']}{measured}", "choose another model: kvd setup --list")


def _memory_split(tried: dict[str, Any], engine: dict[str, Any]) -> Finding:
    """Where weights, cells and pool go, and how much each of them takes."""
    placement = engine.get("placement") or tried["placement"]
    pool = (engine.get("pool") or {}).get("bytes", tried["pool_bytes"])
    sizes = (
        ("weights", tried["weights_bytes"]),
        (f"{tried['n_ctx']:,} cells", tried["cells_bytes"]),
        ("hot pool", pool),
    )
    split = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in sizes)
    return ok("device", f"{placement['text']} ({placement['why']}): {split}")
