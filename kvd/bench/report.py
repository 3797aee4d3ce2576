"""A benchmark's JSON as tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvd.bench.kv import KVD, KVD_HALF
from kvd.bench.statistics import mean, mean_difference, median
from kvd.bench.text import counted, interval
from kvd.worker.turn import LOAD_STEPS

Rows = list[dict[str, Any]]


def lines(result: dict[str, Any]) -> Iterator[str]:
    """The whole report."""
    about = result["about"]
    yield f"{about['command']}  ({about['date']})"
    yield f"{about['model']}, kvd {about['kvd']}, {about['engine']}, {about['machine']}"
    yield from _gate(result["gate"])
    recalled = result["recalled"]
    yield f"{counted(len(recalled), 'question')}, {median(recalled).value:.0f} tokens recalled (median)"
    yield ""
    yield from _quality("Against the full prefill, means over the questions [95 %]", result["quality"])
    yield from _quantizing_cost(result["quality"])
    if result["variants"]:
        count = len(result["variants"][0]["outcomes"])
        yield ""
        yield from _quality(f"Other ways, {counted(count, 'question')}", result["variants"])
    if result["speed"]:
        yield ""
        yield from _speed(result["speed"], about["kv_bytes_per_token"])
    if result["peers"]:
        yield ""
        yield from _peers(result["peers"])


def _gate(gate: dict[str, Any]) -> Iterator[str]:
    figures = gate["figures"]
    yield (
        f"gate: reuse {gate['reuse']}, recompute {gate['recompute']}, KL {figures['kl']:.3f}, "
        f"{figures['top1']:.1%} same tokens, first KL {figures['first_kl']:.3f} over {figures['tokens']} tokens"
    )


def column(row: dict[str, Any], name: str) -> list[float]:
    """One figure of a row by question."""
    return [float(outcome[name]) for outcome in row["outcomes"]]


def nll_ratio(row: dict[str, Any]) -> float:
    """The reference answers' negative log-likelihood against the full prefill's: 0.02 is 2 % worse."""
    return sum(column(row, "nll")) / sum(column(row, "reference_nll")) - 1


def fresh_share(row: dict[str, Any]) -> float:
    """Headers and recomputed tokens in the prompt between prefix and question."""
    return mean(column(row, "header_share")).value + mean(column(row, "recompute_share")).value


def _quality(title: str, rows: Rows) -> Iterator[str]:
    yield title
    yield f"{'':34} {'KL':24} {'top-1':8} {'first KL':24} {'NLL':8} {'headers':8} recomputed"
    for row in rows:
        kl, first = mean(column(row, "kl")), mean(column(row, "first_kl"))
        shares = [mean(column(row, name)).value for name in ("header_share", "recompute_share")]
        yield (
            f"{row['name']:34} {interval(kl, '.4f'):24} {mean(column(row, 'top1')).value:<8.3f} "
            f"{interval(first, '.4f'):24} {nll_ratio(row):<+8.1%} {shares[0]:<8.1%} {shares[1]:.1%}"
        )


def _quantizing_cost(rows: Rows) -> Iterator[str]:
    by_name = {row["name"]: row for row in rows}
    kvd, half = by_name.get(KVD), by_name.get(KVD_HALF)
    if kvd and half:
        difference = mean_difference(column(kvd, "kl"), column(half, "kl"))
        yield f"what quantizing adds to the KL of float16: {interval(difference, '.4f')}"


def shots(times: Rows, kind: str) -> list[dict[str, Any]]:
    return [shot for entry in times for shot in entry[kind]]


def _speed(speed: dict[str, Any], kv_bytes: int) -> Iterator[str]:
    largest = max(entry["budget"] for entry in speed["times"])
    times = [entry for entry in speed["times"] if entry["budget"] == largest]
    asked = counted(len(times), "question")
    yield f"Time to the first token, {asked}, budget {largest}, medians [95 %], in milliseconds"
    names = [name for name in times[0]["cold"][0]["steps_ms"] if name != "prefill"]
    yield f"{'':8} {'TTFT':28} {'load':>8} " + " ".join(f"{name:>10}" for name in names)
    for kind in ("full", "cold", "hot", "resident"):
        taken = shots(times, kind)
        ttft = median([shot["ttft_ms"] for shot in taken])
        steps = [median([shot["steps_ms"].get(name, 0.0) for shot in taken]).value for name in names]
        load = median([load_ms(shot) for shot in taken]).value
        yield f"{kind:8} {interval(ttft, '.0f'):28} {load:>8.0f} " + " ".join(f"{step:>10.0f}" for step in steps)
    yield from _ratios(times)
    yield from _limits(speed, times, kv_bytes)


def load_ms(shot: dict[str, Any]) -> float:
    return sum(float(shot["steps_ms"].get(name, 0.0)) for name in LOAD_STEPS)


def _ratios(times: Rows) -> Iterator[str]:
    for kind in ("cold", "hot", "resident"):
        ratios = [_ttft(entry, "full") / _ttft(entry, kind) for entry in times]
        yield f"full prefill / {kind}: {interval(median(ratios), '.1f')}"


def _ttft(entry: dict[str, Any], kind: str) -> float:
    return median([shot["ttft_ms"] for shot in entry[kind]]).value


def limit_ms(speed: dict[str, Any], entry: dict[str, Any], frame_bytes: float, kv_bytes: int) -> float:
    """No TTFT of this kind can be shorter: the bytes from disk, those into memory, and the fresh tokens."""
    tokens, full = entry["cold"][0]["tokens"], entry["full"][0]
    rate = (full["tokens"]["prefilled"] + full["tokens"]["fresh"]) / full["ttft_ms"]
    memory = kv_bytes * tokens["reused_cold"] / speed["memory_bytes_per_second"]
    disk = frame_bytes / speed["disk_bytes_per_second"]
    return float(1000 * (memory + disk) + (tokens["fresh"] + tokens["recomputed"]) / rate)


def _limits(speed: dict[str, Any], times: Rows, kv_bytes: int) -> Iterator[str]:
    ratios = [
        _ttft(entry, "cold") / limit_ms(speed, entry, size, kv_bytes)
        for entry, size in zip(times, speed["frame_bytes"], strict=True)
    ]
    taken = shots(times, "cold")
    rates = [kv_bytes * shot["tokens"]["reused_cold"] / load_ms(shot) / 1000 for shot in taken]
    part = [load_ms(shot) / shot["ttft_ms"] for shot in taken]
    bits = speed["bits_per_value"]
    yield f"cold / limit (disk, memory, fresh tokens at prefill speed): {interval(median(ratios), '.2f')}"
    yield f"loading: {median(rates).value:.0f} MB/s of float16, {median(part).value:.1%} of the cold TTFT"
    yield f"on disk: {bits['frames']:.2f} bits a value, {bits['file']:.2f} with the database around it"
    disk, memory = speed["disk_bytes_per_second"] / 1e6, speed["memory_bytes_per_second"] / 1e6
    yield f"disk {disk:.0f} MB/s, memory {memory:.0f} MB/s; page cache: {speed['page_cache']}"


def _peers(rows: Rows) -> Iterator[str]:
    yield "llama.cpp's save and restore of the exact prompt"
    for cells in dict.fromkeys(row["cells"] for row in rows):
        taken = [row for row in rows if row["cells"] == cells]
        figures = {name: _of(taken, name) for name in ("cold_ms", "hot_ms", "bytes_per_token")}
        kl = mean([row["outcome"]["kl"] for row in taken]).value
        yield (
            f"{cells:6} cold {figures['cold_ms']:.0f} ms, hot {figures['hot_ms']:.0f} ms, "
            f"{figures['bytes_per_token']:.0f} bytes a token, KL {kl:.4f}"
        )


def _of(rows: Rows, name: str) -> float:
    return median([float(row[name]) for row in rows]).value
