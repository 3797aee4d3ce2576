"""A benchmark's JSON as pictures."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvd.bench.folders import writable
from kvd.bench.kv import FLOOR
from kvd.bench.report import column, fresh_share, limit_ms, shots
from kvd.bench.statistics import mean, median
from kvd.errors import UsageError


def check(folder: Path) -> None:
    """Raises `UsageError` where `draw` would fail: `folder` can't be written, or matplotlib is missing."""
    writable(folder, "--plots")
    if find_spec("matplotlib") is None:
        raise UsageError("plots need matplotlib", hint="pip install 'kvd[bench]'")


def draw(result: dict[str, Any], folder: Path) -> list[Path]:
    """Write the plots into `folder`, which `check` has seen."""
    import matplotlib

    matplotlib.use("Agg")
    files = []
    if result["variants"]:
        files.append(_quality(result, folder / "kv-quality.png"))
    if result["speed"]:
        files.append(_times(result, folder / "kv-ttft.png"))
    return files


def _quality(result: dict[str, Any], file: Path) -> Path:
    """KL against the share of fresh tokens."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5))
    rows = [row for row in result["variants"] if row["name"] != FLOOR]
    line = sorted(
        (fresh_share(row), mean(column(row, "kl")).value) for row in rows if row["name"].endswith("recomputed")
    )
    axes.plot([share for share, _ in line], [kl for _, kl in line], color="0.7", zorder=0)
    colors = pyplot.get_cmap("tab20").colors  # type: ignore[attr-defined]  # a listed colour map has them
    for row, color, marker in zip(rows, colors, "oosssss^^vvDD<>*", strict=False):
        kl = mean(column(row, "kl"))
        spread = [[kl.value - kl.low], [kl.high - kl.value]]
        axes.errorbar(fresh_share(row), kl.value, spread, fmt=marker, color=color, elinewidth=0.5, label=row["name"])
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set(xlabel="fresh tokens in the prompt (headers and recomputed)", ylabel="mean KL to the full prefill, nats")
    # Some ways are a hundred times worse than others.
    axes.set_yscale("log")
    axes.set_title(f"{result['about']['model']}, {len(rows[0]['outcomes'])} questions")
    axes.legend(fontsize=7, bbox_to_anchor=(1.01, 1), loc="upper left")
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
    return file


def _times(result: dict[str, Any], file: Path) -> Path:
    """TTFT against recalled tokens."""
    from matplotlib import pyplot

    speed, kv_bytes = result["speed"], result["about"]["kv_bytes_per_token"]
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    entries = sorted(speed["times"], key=_recalled)
    for kind, color in (("full", "C3"), ("cold", "C0"), ("hot", "C1"), ("resident", "C2")):
        points = [(_recalled(entry), median([shot["ttft_ms"] for shot in entry[kind]]).value) for entry in entries]
        axes.plot([x for x, _ in points], [y / 1000 for _, y in points], "o", color=color, label=kind)
    per_token = sum(speed["frame_bytes"]) / sum(result["recalled"][: len(speed["frame_bytes"])])
    limits = [limit_ms(speed, entry, per_token * _recalled(entry), kv_bytes) / 1000 for entry in entries]
    # No line: prompts of one length differ in their fresh tokens, and so in their limit.
    axes.plot([_recalled(entry) for entry in entries], limits, "k_", markersize=12, label="limit: bytes, fresh tokens")
    axes.set(xlabel="recalled tokens", ylabel="time to the first token, s")
    axes.set_yscale("log")
    axes.set_title(f"{result['about']['model']}, {len(shots(speed['times'], 'cold'))} cold runs")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
    return file


def _recalled(entry: dict[str, Any]) -> int:
    return int(entry["cold"][0]["tokens"]["recalled"])
