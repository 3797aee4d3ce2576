"""`kvd status` as text."""

from __future__ import annotations

from typing import Any

from .text import clean_line, counted, duration, file_size


def without_daemon() -> dict[str, Any]:
    """What can be said when no daemon runs."""
    from kvd import paths
    from kvd.config import load_settings

    size = paths.bytes_on_disk(paths.store_file())
    return {"running": False, "store": {"file_bytes": size, "cap_bytes": load_settings().store_bytes}}


def lines(state: dict[str, Any]) -> list[str]:
    """One line for each part, a few words at its start to look for."""
    if not state["running"]:
        return ["daemon   not running (the next command starts it)", _store_line(state["store"])]
    shown = [
        _daemon_line(state["daemon"]),
        _model_line(state),
        _engine_line(state["engine"], state["reuse_setting"], state["model"]),
        *_device_lines(state["engine"]),
        *_pool_lines(state),
        _store_line(state["store"]),
        *_index_lines(state),
    ]
    if state["embedder_error"]:
        shown.append(f"embedder {state['embedder_error']}")
    if state["settings_error"]:
        shown.append(f"settings {state['settings_error']}")
    return [clean_line(line) for line in shown]


def _daemon_line(daemon: dict[str, Any]) -> str:
    verb = "stopping" if daemon["stopping"] else "running"
    work = f", {counted(daemon['active'], 'request')} at work" if daemon["active"] else ""
    up = duration(daemon["uptime_seconds"])
    return f"daemon   {verb}, kvd {daemon['version']}, pid {daemon['pid']}, up {up}{work}"


def _model_line(state: dict[str, Any]) -> str:
    model = state["model"]
    if model is None:
        return "model    none, run: kvd setup"
    return f"model    {model['error'] or model['name']}{_gate_words(model['gate'])}"


def _gate_words(gate: dict[str, Any] | None) -> str:
    """How near its answers from reused KV came to those computed whole."""
    figures = gate and gate["figures"]
    if not gate or not figures:
        return ""
    measured = f"KL {figures['kl']:.3f}, {figures['top1']:.0%} same tokens"
    return f" (checked: reuse {gate['reuse']}, {measured}, recompute {gate['recompute']})"


def _engine_line(engine: dict[str, Any], reuse_setting: bool, model: dict[str, Any] | None) -> str:
    if engine["state"] == "stopped":
        setting = "" if reuse_setting else "; reuse off in the settings"
        return f"engine   not loaded (the next question loads it){setting}"
    parts = [engine["state"]]
    if model and model["sha256"] and engine.get("model_sha256", model["sha256"]) != model["sha256"]:
        parts.append(f"still with {engine.get('model', 'another model')}: the next question loads {model['name']}")
    if engine.get("reuse"):
        reason = engine.get("reuse_reason")
        parts.append(f"reuse {engine['reuse']}" + (f" ({reason})" if reason else ""))
    if engine["waiting"]:
        parts.append(f"{counted(engine['waiting'], 'question')} waiting")
    return f"engine   {', '.join(parts)}"


def _device_lines(engine: dict[str, Any]) -> list[str]:
    """What is on the GPU, and why so much and no more."""
    placement = engine.get("placement")
    return [f"device   {placement['text']} ({placement['why']})"] if placement else []


def _pool_lines(state: dict[str, Any]) -> list[str]:
    pool = state["engine"].get("pool")
    if not pool:
        return []
    used, size = pool["used_bytes"], pool["bytes"]
    line = f"pool     {file_size(used)} of {file_size(size)} ({used / size:.0%}), {counted(pool['blocks'], 'block')}"
    return [line + _hit_rate_words(state.get("metrics", {}))]


def _hit_rate_words(metrics: dict[str, Any]) -> str:
    """The share of all recalled tokens whose KV was in memory, since the daemon's start."""
    tokens = {sample["labels"]["source"]: sample["value"] for sample in metrics.get("kvd_prompt_tokens_total", [])}
    hot = tokens.get("resident", 0) + tokens.get("reused_hot", 0)
    recalled = hot + sum(tokens.get(source, 0) for source in ("reused_cold", "recomputed", "prefilled"))
    return f", hit rate {hot / recalled:.0%}" if recalled else ""


def _store_line(store: dict[str, Any]) -> str:
    line = f"store    {file_size(store.get('file_bytes', 0))} of {file_size(store['cap_bytes'])}"
    if "blocks" in store:
        line += f", {counted(store['blocks'], 'block')}"
    if other := store.get("other", {}).get("blocks"):
        line += f" ({other:,} of other models)"
    for name, words in (("lost_blocks", "not written"), ("dropped_damaged", "dropped as damaged")):
        if store.get(name):
            line += f", {store[name]:,} {words}"
    return line


def _index_lines(state: dict[str, Any]) -> list[str]:
    busy = set(state["indexing"])
    known = [_index_line(entry, str(entry.get("repo")) in busy) for entry in state["indexes"]]
    new = busy - {str(entry.get("repo")) for entry in state["indexes"]}
    return [*known, *(f"index    {root}: being made" for root in sorted(new))] or ["index    none yet"]


def _index_line(entry: dict[str, Any], busy: bool) -> str:
    line = f"index    {entry.get('repo')}: {counted(entry.get('files', 0), 'file')}"
    line += f", {counted(entry.get('chunks', 0), 'chunk')}, {file_size(entry.get('bytes', 0))}"
    if pending := entry.get("pending_vectors"):
        line += f", {counted(pending, 'vector')} to come"
    return line + (", being updated" if busy else "") + _watch_words(entry.get("watch"))


def _watch_words(watch: dict[str, Any] | None) -> str:
    """Whether what changes is indexed before it is asked about."""
    if watch is None:
        return ""
    words = "not watched" if watch["state"] == "off" else watch["state"]
    return f", {words} ({watch['why']})" if watch["why"] else f", {words}"
