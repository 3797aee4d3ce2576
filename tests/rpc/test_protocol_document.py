"""docs/protocol.md names every method, param, number and result field that there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from kvd import errors
from kvd.rpc import messages, params
from kvd.service.asker import TOKEN_KINDS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")
METHODS = {
    "initialize": params.InitializeParams,
    "status": params.StatusParams,
    "metrics": params.MetricsParams,
    "index": params.IndexParams,
    "search": params.SearchParams,
    "ask": params.AskParams,
    "prefetch": params.PrefetchParams,
    "session/create": params.SessionCreateParams,
    "session/list": params.SessionListParams,
    "session/show": params.SessionParams,
    "session/fork": params.SessionForkParams,
    "session/close": params.SessionParams,
    "session/delete": params.SessionParams,
    "session/search": params.SessionSearchParams,
    "note/add": params.NoteAddParams,
    "note/list": params.NoteListParams,
    "note/delete": params.NoteDeleteParams,
    "forget": params.ForgetParams,
    "gc": params.GcParams,
    "shutdown": params.ShutdownParams,
}


def section(title: str) -> str:
    found = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title}"
    return found.group(1)


@pytest.mark.parametrize("method", METHODS)
def test_every_param_is_documented(method: str) -> None:
    text = section(method)
    for field in fields(METHODS[method]):
        assert f"`{field.metadata['wire'] or field.name}`" in text


def test_every_params_class_is_of_a_method() -> None:
    classes = {name for name in vars(params) if name.endswith("Params") and name != "Params"}
    assert classes == {kind.__name__ for kind in METHODS.values()}


def test_every_error_is_documented() -> None:
    text = section("Errors")
    for kind in errors.KvdError.__subclasses__():
        if kind is not messages.RpcError:
            assert f"| {kind.rpc_code} | `{kind.code}` | {kind.exit_code} |" in text
    for number in ("PARSE_ERROR", "INVALID_REQUEST", "METHOD_NOT_FOUND", "INTERNAL_ERROR"):
        assert f"| {getattr(messages, number)} |" in text


def test_every_kind_of_token_is_documented() -> None:
    for kind in TOKEN_KINDS:
        assert f"`{kind}`" in section("ask")
