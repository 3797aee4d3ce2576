"""JSON-RPC 2.0 requests, answers and errors."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from kvd.config import bounds
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

MAX_NOTE = 1_000
"""Characters of a note."""

MAX_FILTERS = 100
MAX_FILTER = 1_000
"""Patterns of paths, or languages, of one request, and characters of each."""

TOP_K = bounds("top_k")
BUDGET = bounds("budget")
ROUNDS = bounds("rounds")
MAX_TOKENS = bounds("max_tokens")
"""Least and most of the params of these names."""

LIMIT = (1, 50)
"""Least and most turns of a search for what was said."""

Message = dict[str, Any]
RequestId = int | str


class RpcError(KvdError):
    """A fault of the protocol rather than of the request: carries JSON-RPC's own number."""

    def __init__(self, number: int, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.number = number


def check_text(name: str, text: str) -> str:
    """`text` without surrounding blanks; `UsageError` when nothing is left or it is over `MAX_TEXT`, or `MAX_NOTE`."""
    most = MAX_NOTE if name == "note" else MAX_TEXT
    if not text.strip():
        raise UsageError(f"the {name} is empty", hint=f'kvd {_COMMAND[name]} "..."')
    if len(text) > most:
        raise UsageError(
            f"the {name} has {len(text):,} characters, {most:,} are possible",
            hint=f'kvd {_COMMAND[name]} "fewer words"',
        )
    return text.strip()


_COMMAND = {"question": "ask", "query": "search", "note": "notes add"}


def check_folder(path: str) -> str:
    """`path` if it is absolute and could be a path at all, else `UsageError`."""
    if "\0" in path:
        raise UsageError("the path has a NUL character in it, which no path can have")
    if not os.path.isabs(path):
        raise UsageError("the path must be absolute")
    return path


class Request(NamedTuple):
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
