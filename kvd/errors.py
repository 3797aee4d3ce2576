"""The error tree. Every error that a user can meet is one of these.

KvdError                     1   failed
├── UsageError               2   the request makes no sense
├── UnavailableError         3   daemon or engine can't be reached or died
├── NoModelError             4   no model is set up
├── RepositoryError          5   not a readable repository
├── BusyError                6   too much is waiting already
├── CancelledError         130   the asker interrupted it
├── ModelError               1   the model file is unusable
├── StoreError               1   a database can't be used (newer version, no space, no permission)
└── DownloadError            1   a model could not be fetched or failed its checksum

The number is the exit code. `code` names the kind on the wire and in JSON; `hint` is what to type next.
"""

from __future__ import annotations

from typing import Any, ClassVar


class KvdError(Exception):
    """Something went wrong that the user should read about in one line."""

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1
    rpc_code: ClassVar[int] = -32000

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def to_json(self) -> dict[str, Any]:
        """The object under `error` of a `--json` answer."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class UsageError(KvdError):
    code = "usage"
    exit_code = 2
    rpc_code = -32602


class UnavailableError(KvdError):
    code = "unavailable"
    exit_code = 3
    rpc_code = -32003


class NoModelError(KvdError):
    code = "no-model"
    exit_code = 4
    rpc_code = -32004


class RepositoryError(KvdError):
    code = "repository"
    exit_code = 5
    rpc_code = -32005


class BusyError(KvdError):
    code = "busy"
    exit_code = 6
    rpc_code = -32006


class CancelledError(KvdError):
    code = "cancelled"
    exit_code = 130
    rpc_code = -32800


class ModelError(KvdError):
    code = "model"
    rpc_code = -32007


class StoreError(KvdError):
    code = "store"
    rpc_code = -32008


class DownloadError(KvdError):
    code = "download"
    rpc_code = -32009


_BY_CODE: dict[str, type[KvdError]] = {
    kind.code: kind
    for kind in (
        KvdError,
        UsageError,
        UnavailableError,
        NoModelError,
        RepositoryError,
        BusyError,
        CancelledError,
        ModelError,
        StoreError,
        DownloadError,
    )
}


def error_from_json(data: dict[str, Any]) -> KvdError:
    """The inverse of `KvdError.to_json`; unknown codes become a plain `KvdError`."""
    kind = _BY_CODE.get(str(data.get("code")), KvdError)
    return kind(str(data.get("message", "unknown error")), str(data.get("hint", "")))
