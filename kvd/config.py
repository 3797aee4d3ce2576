"""Settings: defaults, overridden by the user's `config.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvd import paths
from kvd.errors import UsageError
from kvd.regular import read_small

DEFAULT_EMBEDDER = "default"


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, with its default. Each is a top-level key of `config.toml`."""

    n_ctx: int = 8192
    """Cells of the model's context, which all questions that are answered at the same time share."""
    parallel: int = 8
    """Most questions answered at the same time, as far as their cells allow."""
    budget: int = 2048
    """Tokens of code that a question may recall."""
    top_k: int = 8
    """Chunks that a question may recall."""
    max_tokens: int = 512
    """Longest answer in tokens."""
    threads: int = 0
    """Threads of the engine; 0: as many as there are physical cores."""
    gpu_layers: int = -1
    """Layers on the GPU where the llama.cpp build has one, the output counting as one; -1: as many as fit."""
    reuse: bool = True
    """Use stored KV; false computes every prompt afresh."""
    recompute: int = -1
    """Tokens at the start of each recalled body that are computed afresh; -1: the model's own choice."""
    short_headers: bool = False
    """Tell the model a chunk's number alone, not its place and scope: the answer starts sooner and is poorer."""
    resident_prompts: int = 8
    """Prompts that may stay in the model's cells, for questions that recall the same code in the same order."""
    rerank_ms: int = 0
    """Milliseconds that the model may take to judge what was recalled before it answers; 0: it is not asked to."""
    eviction: str = "combined"
    """What leaves the hot pool first: lru (unused for longest), semantic (unlike recent questions) or combined."""
    pool_bytes: int = 0
    """Hard cap of the hot pool; 0: an eighth of the free memory, at most 2 GB, at least one full context."""
    store_bytes: int = 8_000_000_000
    """Hard cap of all that the cold store has on disk."""
    idle_minutes: int = 30
    """The model is unloaded after so long without a question; 0: never."""
    embedder: str = "default"
    """What makes vectors of code and questions: default, or the path of an embedding model: GGUF, ONNX, or a folder of
    sentence-transformers."""
    not_secret: str = ""
    """Files that only look like secrets, as patterns of .gitignore with blanks between: tests/certs/ *.example.pem"""
    max_file_bytes: int = 1_000_000
    """Larger files are not indexed."""
    watch: bool = True
    """Index what changes in the repositories in use before the next question comes."""


_MINIMUM = {
    "n_ctx": 1024,
    "parallel": 1,
    "budget": 64,
    "top_k": 1,
    "max_tokens": 1,
    "gpu_layers": -1,
    "recompute": -1,
}
_MAXIMUM = {
    "n_ctx": 1 << 20,
    "parallel": 32,
    "top_k": 200,
    "threads": 512,
    "gpu_layers": 1000,
    "recompute": 64,
    "resident_prompts": 8,
}
_LARGEST = 1 << 40
_CHOICES = {"eviction": ("lru", "semantic", "combined")}
_SHOWN = 60
"""Characters of a wrong key or value in the error about it."""


def _checked(name: str, value: Any, kind: type, file: Path) -> Any:
    if type(value) is not kind:
        raise UsageError(f"{name} must be {kind.__name__}, not {_shown(value)}", hint=f"edit {file}")
    if isinstance(value, int) and kind is int and not _MINIMUM.get(name, 0) <= value <= _MAXIMUM.get(name, _LARGEST):
        bounds = f"between {_MINIMUM.get(name, 0)} and {_MAXIMUM.get(name, _LARGEST)}"
        raise UsageError(f"{name} must be {bounds}, not {_shown(value)}", hint=f"edit {file}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise UsageError(f"{name} must be one of {', '.join(_CHOICES[name])}, not {_shown(value)}", hint=f"edit {file}")
    return value


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:
        # Python writes no number of so many digits; TOML may have them in hexadecimal.
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def load_settings(file: Path | None = None) -> Settings:
    """Read the user's settings; a missing file means the defaults.

    Raises `UsageError` for a file that can't be read or is not TOML, an unknown key or a wrong value.
    """
    file = file or paths.config_file()
    try:
        raw = tomllib.loads(read_small(file).decode("utf-8"))
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        raise UsageError(f"can't read {file}: {error.strerror}", hint=f"make {file} readable, or remove it") from error
    except ValueError as error:
        raise UsageError(f"can't read {file}: {error}", hint=f"edit {file}") from error
    except RecursionError:
        raise UsageError(f"can't read {file}: it is nested too deeply", hint=f"edit {file}") from None
    kinds = {field.name: type(field.default) for field in fields(Settings)}
    unknown = sorted(set(raw) - set(kinds))
    if unknown:
        raise UsageError(f"unknown setting {_shown(unknown[0])} in {file}", hint=f"known: {', '.join(kinds)}")
    return Settings(**{name: _checked(name, value, kinds[name], file) for name, value in raw.items()})
