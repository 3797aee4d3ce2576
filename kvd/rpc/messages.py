"""Method names, their typed params, and JSON-RPC 2.0 requests, answers and errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from kvd.errors import KvdError, UsageError, error_from_json

PROTOCOL = 1
"""Raised when a change would break an existing client."""

CANCEL = "$/cancelRequest"
PROGRESS = "$/progress"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603

MAX_TEXT = 20_000
"""Characters of a question or a query."""

Message = dict[str, Any]
RequestId = int | str


class RpcError(KvdError):
    """A fault of the protocol rather than of the request: carries JSON-RPC's own number."""

    def __init__(self, number: int, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.number = number


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
class IndexParams:
    path: str = _param((str,))
    background: bool = _param((bool,), False)
    progress_token: int | str | None = _token()


@dataclass(frozen=True, slots=True)
class SearchParams:
    query: str = _param((str,), clean=_text)
    repo: str = _param((str,))
    top_k: int | None = _number(1, 200)
    progress_token: int | str | None = _token()


@dataclass(frozen=True, slots=True)
class AskParams:
    question: str = _param((str,), clean=_text)
    repo: str = _param((str,))
    top_k: int | None = _number(1, 200)
    budget: int | None = _number(64, 10_000_000)
    max_tokens: int | None = _number(1, 1_000_000)
    reuse: bool | None = _param((bool,), None)
    progress_token: int | str | None = _token()


@dataclass(frozen=True, slots=True)
class GcParams:
    pass


@dataclass(frozen=True, slots=True)
class ShutdownParams:
    mode: str = _param((str,), "drain")


Params = TypeVar("Params")

_NAMES = {str: "text", int: "a whole number", bool: "true or false"}


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
        raise UsageError(
            f"unknown parameter {unknown[0][:50]!r}", hint=f"known: {', '.join(known) or 'none'}"
        )
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
    if type(value) is int and not rule["low"] <= value <= rule["high"]:
        raise UsageError(f"{name} must be between {rule['low']:,} and {rule['high']:,}")
    return rule["clean"](value)


def check_text(name: str, text: str) -> str:
    """`text` without surrounding blanks; `UsageError` when nothing is left or it is over `MAX_TEXT`."""
    if not text.strip():
        raise UsageError(f"the {name} is empty", hint=f'kvd {_COMMAND[name]} "..."')
    if len(text) > MAX_TEXT:
        raise UsageError(f"the {name} has {len(text):,} characters; at most {MAX_TEXT:,} are possible")
    return text.strip()


_COMMAND = {"question": "ask", "query": "search"}


def check_folder(path: str) -> str:
    """`path` if it is absolute and could be a path at all, else `UsageError`."""
    if "\0" in path or not os.path.isabs(path):
        raise UsageError("the path must be absolute")
    return path


@dataclass(frozen=True, slots=True)
class Request:
    """`id` is None for a notification, which gets no answer."""

    method: str
    params: Any
    id: RequestId | None


def parse_request(message: Any) -> Request:
    """Raises `RpcError` for anything that is not a JSON-RPC 2.0 request (batches are not offered)."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, "not a JSON-RPC 2.0 request")
    method, number = message.get("method"), message.get("id")
    if not isinstance(method, str) or type(number) not in (int, str, type(None)):
        raise RpcError(INVALID_REQUEST, "not a JSON-RPC 2.0 request")
    return Request(method, message.get("params"), number)


def request(number: RequestId | None, method: str, params: Message) -> Message:
    message: Message = {"jsonrpc": "2.0", "method": method, "params": params}
    return message if number is None else {**message, "id": number}


def answer(number: RequestId, result: Message) -> Message:
    return {"jsonrpc": "2.0", "id": number, "result": result}


def error_answer(number: RequestId | None, error: KvdError) -> Message:
    code = error.number if isinstance(error, RpcError) else error.rpc_code
    body = {"code": code, "message": error.message, "data": error.to_json()}
    return {"jsonrpc": "2.0", "id": number, "error": body}


def error_from_answer(error: Any) -> KvdError:
    """The error that an `error` member of an answer stands for."""
    if not isinstance(error, dict):
        return KvdError("the daemon's answer makes no sense")
    data = error.get("data")
    if isinstance(data, dict):
        return error_from_json(data)
    return KvdError(str(error.get("message", "unknown error")))
