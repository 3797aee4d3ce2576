"""The stages of a request, in words."""

from __future__ import annotations

from typing import Any

from kvd.plain import clean_line

_TITLES = {
    "scan": "looking at the files",
    "index": "indexing",
    "wait": "waiting",
    "load": "loading the model",
    "check": "checking once whether the model can reuse KV",
    "prefill": "reading the code",
}
_UNITS = {"index": "files"}


def describe(value: dict[str, Any]) -> str:
    """One line for a stage, as `indexing 312/1,024 files`."""
    stage = str(value.get("stage", ""))
    done, total = int(value.get("done") or 0), int(value.get("total") or 0)
    parts = [_TITLES.get(stage, stage)]
    if total:
        parts.append(f"{done:,}/{total:,}")
        parts.append(_UNITS.get(stage, ""))
    parts.append(str(value.get("message") or ""))
    return clean_line(" ".join(part for part in parts if part))
