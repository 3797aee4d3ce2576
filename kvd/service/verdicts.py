"""The gate's verdicts, kept by model so that each model is checked once: `gate.json` in the cache folder.

    {"format": 1, "models": {sha256: verdict}}

A verdict is what the engine child made of it, and the child decides if it still holds. Losing the file costs a
check at the next load.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from kvd.models.files import write_atomically
from kvd.regular import read_json

_log = logging.getLogger(__name__)

_FORMAT = 1
_MOST = 100
"""Models kept, those checked last."""
_FIELDS = {"key": str, "reuse": str, "reason": str, "recompute": int}
_FIGURES = {"kl": float, "top1": float, "first_kl": float, "tokens": int}
_LARGEST = 1 << 31
"""Above all that a figure can be."""

Verdict = dict[str, Any]


class Verdicts:
    """Reads and writes the file at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, model_sha256: str) -> Verdict | None:
        return self._read().get(model_sha256)

    def put(self, model_sha256: str, verdict: Verdict) -> None:
        """Keep a verdict; where that fails, the model is checked again."""
        models = self._read()
        if models.pop(model_sha256, None) == verdict:
            return
        models[model_sha256] = verdict
        kept = dict(list(models.items())[-_MOST:])
        try:
            write_atomically(self._path, json.dumps({"format": _FORMAT, "models": kept}, indent=1).encode())
        except OSError as error:
            _log.warning("can't keep the gate's verdict: %s", error.strerror)

    def _read(self) -> dict[str, Verdict]:
        try:
            data = read_json(self._path)
            if data["format"] != _FORMAT:
                return {}
            return {str(sha256): verdict for sha256, verdict in data["models"].items() if _is_verdict(verdict)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}


def _is_verdict(data: Any) -> bool:
    if not isinstance(data, dict) or not _has(data, _FIELDS):
        return False
    figures = data.get("figures")
    if figures is None:
        return True
    complete = isinstance(figures, dict) and _has(figures, _FIGURES) and len(figures) == len(_FIGURES)
    # Also false for what is no number at all.
    return complete and all(-_LARGEST < figure < _LARGEST for figure in figures.values())


def _has(data: Verdict, fields: dict[str, type]) -> bool:
    return all(type(data.get(name)) is kind for name, kind in fields.items())
