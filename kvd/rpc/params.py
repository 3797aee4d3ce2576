"""The params of each method, and the check of what comes over the wire against them.

Apart from the messages because only the daemon needs them, and commands have to start at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from kvd.config import bounds
from kvd.errors import UsageError
from kvd.rpc.messages import BUDGET, LIMIT, MAX_FILTER, MAX_FILTERS, MAX_TOKENS, ROUNDS, TOP_K

_LATEST = 1 << 40
"""Seconds since 1970: in 34,000 years."""


def _text(value: Any) -> Any:
    """Without halves of surrogate pairs, which nothing further down could store or print."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value


def _same(value: Any) -> Any:
    return value


def _param(
    kind: tuple[type, ...],
    default: Any = MISSING,
    low: int = 0,
    high: int = 1 << 31,
    clean: Callable[[Any], Any] = _same,
    wire: str = "",
) -> Any:
    """A dataclass field with what a value from the wire has to be."""
    metadata = {"kind": kind, "low": low, "high": high, "clean": clean, "wire": wire}
    if default is MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def _each(values: list[Any]) -> tuple[Any, ...]:
    return tuple(map(_text, values))


def _texts() -> Any:
    return _param((list,), (), clean=_each)


def _number(low: int, high: int) -> Any:
    return _param((int,), None, low, high)


def _token() -> Any:
    return _param((int, str), None, low=-(1 << 53), high=1 << 53, wire="progressToken")


@dataclass(frozen=True, slots=True)
class InitializeParams:
    version: str = _param((str,))
    client: str = _param((str,), "")


@dataclass(frozen=True, slots=True)
class StatusParams:
    pass


@dataclass(frozen=True, slots=True)
class MetricsParams:
    pass


@dataclass(frozen=True, slots=True)
class IndexParams:
    path: str = _param((str,))
    background: bool = _param((bool,), False)
    progress_token: int | str | None = _token()


@dataclass(frozen=True, slots=True)
class SearchParams:
    query: str = _param((str,), clean=_text)
    repo: str = _param((str,))
    top_k: int | None = _number(*TOP_K)
    rerank: bool = _param((bool,), False)
    progress_token: int | str | None = _token()
    paths: tuple[str, ...] = _texts()
    languages: tuple[str, ...] = _texts()
    rerank_ms: int | None = _number(*bounds("rerank_ms"))


@dataclass(frozen=True, slots=True)
class AskParams:
    question: str = _param((str,), clean=_text)
    repo: str = _param((str,))
    top_k: int | None = _number(*TOP_K)
    budget: int | None = _number(*BUDGET)
    max_tokens: int | None = _number(*MAX_TOKENS)
    reuse: bool | None = _param((bool,), None)
    progress_token: int | str | None = _token()
    paths: tuple[str, ...] = _texts()
    languages: tuple[str, ...] = _texts()
    rerank_ms: int | None = _number(*bounds("rerank_ms"))
    session: str | None = _param((str,), None)
    memory: bool | None = _param((bool,), None)
    rounds: int | None = _number(*ROUNDS)


@dataclass(frozen=True, slots=True)
class SessionParams:
    repo: str = _param((str,))
    name: str = _param((str,))


@dataclass(frozen=True, slots=True)
class SessionCreateParams:
    repo: str = _param((str,))
    name: str | None = _param((str,), None)


@dataclass(frozen=True, slots=True)
class SessionListParams:
    repo: str = _param((str,))


@dataclass(frozen=True, slots=True)
class SessionForkParams:
    repo: str = _param((str,))
    name: str = _param((str,))
    new_name: str | None = _param((str,), None)


@dataclass(frozen=True, slots=True)
class SessionSearchParams:
    repo: str = _param((str,))
    query: str = _param((str,), clean=_text)
    limit: int = _param((int,), 5, *LIMIT)
    since: int | None = _param((int,), None, high=_LATEST)
    until: int | None = _param((int,), None, high=_LATEST)
    progress_token: int | str | None = _token()


@dataclass(frozen=True, slots=True)
class NoteAddParams:
    repo: str = _param((str,))
    text: str = _param((str,), clean=_text)


@dataclass(frozen=True, slots=True)
class NoteListParams:
    repo: str = _param((str,))


@dataclass(frozen=True, slots=True)
class NoteDeleteParams:
    repo: str = _param((str,))
    number: int = _param((int,), low=1)


@dataclass(frozen=True, slots=True)
class PrefetchParams:
    question: str = _param((str,), clean=_text)
    repo: str = _param((str,))
    top_k: int | None = _number(*TOP_K)
    budget: int | None = _number(*BUDGET)
    paths: tuple[str, ...] = _texts()
    languages: tuple[str, ...] = _texts()


@dataclass(frozen=True, slots=True)
class ForgetParams:
    path: str = _param((str,))


@dataclass(frozen=True, slots=True)
class GcParams:
    pass


@dataclass(frozen=True, slots=True)
class ShutdownParams:
    mode: str = _param((str,), "drain")


Params = TypeVar("Params")

_FILTERS = {"paths": "--path 'src/**'", "languages": "--lang python"}
_NAMES = {list: "a list of texts", str: "text", int: "a whole number", bool: "true or false"}


def parse_params(kind: type[Params], raw: Any) -> Params:
    """Check what came over the wire against the dataclass `kind`; `UsageError` names the first fault.

    A parameter that has a default may also be null, which means the default.
    """
    raw = {} if raw is None else raw
    if not isinstance(raw, dict):
        raise UsageError("params must be an object")
    known = {f.metadata["wire"] or f.name: f for f in fields(kind)}  # type: ignore[arg-type]  # a dataclass type
    unknown = sorted(set(raw) - set(known))
    if unknown:
        raise UsageError(f"unknown parameter {unknown[0][:50]!r}", hint=f"known: {', '.join(known) or 'none'}")
    values = {}
    for wire, f in known.items():
        if raw.get(wire) is not None:
            values[f.name] = _checked(wire, raw[wire], f.metadata)
        elif f.default is MISSING:
            raise UsageError(f"{wire} is missing")
    return kind(**values)


def _checked(name: str, value: Any, rule: Any) -> Any:
    # `type(...)`, not isinstance: true is an int to Python.
    if type(value) not in rule["kind"]:
        wanted = " or ".join(_NAMES[kind] for kind in rule["kind"])
        raise UsageError(f"{name} must be {wanted}")
    if type(value) is list:
        _check_texts(name, value)
    if type(value) is int and not rule["low"] <= value <= rule["high"]:
        raise UsageError(f"{name} must be between {rule['low']:,} and {rule['high']:,}", hint="kvd --help")
    return rule["clean"](value)


def _check_texts(name: str, values: list[Any]) -> None:
    if not all(type(value) is str and 0 < len(value) <= MAX_FILTER for value in values):
        raise UsageError(
            f"{name} must be a list of texts of 1 to {MAX_FILTER:,} characters",
            hint=f"kvd search QUERY {_FILTERS[name]}",
        )
    if len(values) > MAX_FILTERS:
        raise UsageError(f"{name} has {len(values):,} items, {MAX_FILTERS} are possible")
