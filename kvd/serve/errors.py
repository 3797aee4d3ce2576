"""Errors in OpenAI's form."""

from __future__ import annotations

from starlette.responses import JSONResponse

from kvd.errors import (
    BusyError,
    CancelledError,
    KvdError,
    NoModelError,
    RepositoryError,
    UnavailableError,
    UsageError,
)
from kvd.plain import clean_line
from kvd.rpc.messages import Message

_KINDS: tuple[tuple[type[KvdError], int, str, str | None], ...] = (
    (UsageError, 400, "invalid_request_error", None),
    (RepositoryError, 404, "invalid_request_error", "model_not_found"),
    (BusyError, 429, "rate_limit_error", "rate_limit_exceeded"),
    (NoModelError, 503, "server_error", "no_model"),
    (UnavailableError, 503, "server_error", "unavailable"),
    (CancelledError, 503, "server_error", "cancelled"),
)


def response(status: int, message: str, kind: str, code: str | None, param: str | None = None) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(_body(message, kind, code, param), status, headers)


def from_kvd(error: KvdError) -> JSONResponse:
    status, kind, code = _described(error)
    return response(status, _words(error), kind, code)


def body_from_kvd(error: KvdError) -> Message:
    """For an answer that has begun: its status is sent."""
    _, kind, code = _described(error)
    return _body(_words(error), kind, code, None)


def _described(error: KvdError) -> tuple[int, str, str | None]:
    for type_, status, kind, code in _KINDS:
        if isinstance(error, type_):
            return status, kind, code
    return 500, "server_error", error.code


def _words(error: KvdError) -> str:
    return clean_line(f"{error.message} (hint: {error.hint})" if error.hint else error.message)


def _body(message: str, kind: str, code: str | None, param: str | None) -> Message:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
