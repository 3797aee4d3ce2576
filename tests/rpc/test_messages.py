from __future__ import annotations

from typing import Any

import pytest

from kvd.errors import BusyError, KvdError, UsageError
from kvd.rpc import messages
from kvd.rpc.params import AskParams, IndexParams, SearchParams, ShutdownParams, StatusParams, parse_params


def test_params_take_their_defaults() -> None:
    assert parse_params(StatusParams, None) == StatusParams()
    assert parse_params(ShutdownParams, {"mode": None}).mode == "drain"
    params = parse_params(AskParams, {"question": "why", "repo": "/r", "progressToken": 7, "reuse": False})
    assert params == AskParams("why", "/r", None, None, None, False, 7)


@pytest.mark.parametrize(
    ("kind", "raw", "message"),
    [
        (SearchParams, [], "params must be an object"),
        (SearchParams, {"repo": "/r"}, "query is missing"),
        (SearchParams, {"query": None, "repo": "/r"}, "query is missing"),
        (SearchParams, {"query": 1, "repo": "/r"}, "query must be text"),
        (SearchParams, {"query": "q", "repo": "/r", "top_k": "5"}, "top_k must be a whole number"),
        (SearchParams, {"query": "q", "repo": "/r", "top_k": True}, "top_k must be a whole number"),
        (SearchParams, {"query": "q", "repo": "/r", "top_k": 1.0}, "top_k must be a whole number"),
        (SearchParams, {"query": "q", "repo": "/r", "top_k": 0}, "top_k must be between 1 and 200"),
        (SearchParams, {"query": "q", "repo": "/r", "topk": 5}, "unknown parameter 'topk'"),
        (SearchParams, {"query": "q", "repo": "/r", "progressToken": {}}, "progressToken must be a whole number"),
        (SearchParams, {"query": "q", "repo": "/r", "paths": "src"}, "paths must be a list of texts"),
        (
            SearchParams,
            {"query": "q", "repo": "/r", "paths": ["src", 1]},
            "paths must be a list of texts of 1 to 1,000",
        ),
        (AskParams, {"question": "q", "repo": "/r", "languages": [""]}, "languages must be a list of texts of 1 to"),
        (AskParams, {"question": "q", "repo": "/r", "paths": ["x"] * 101}, "paths has 101 items, 100 are possible"),
        (IndexParams, {"path": "/r", "background": 1}, "background must be true or false"),
        (AskParams, {"question": "q", "repo": "/r", "budget": 10**30}, "budget must be between"),
    ],
)
def test_wrong_params_are_named(kind: type[Any], raw: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_params(kind, raw)
    assert "\n" not in caught.value.message


def test_lists_of_texts() -> None:
    params = parse_params(SearchParams, {"query": "q", "repo": "/r", "paths": ["a\ud800", "!b"], "languages": None})
    assert (params.paths, params.languages) == (("a?", "!b"), ())


def test_text_that_cannot_be_encoded_is_replaced() -> None:
    assert parse_params(SearchParams, {"query": "a\ud800b", "repo": "/r"}).query == "a?b"


@pytest.mark.parametrize("text", ["", " \n\t", "x" * 20_001])
def test_texts_have_limits(text: str) -> None:
    with pytest.raises(UsageError):
        messages.check_text("question", text)


def test_a_text_at_the_limit_is_taken() -> None:
    assert messages.check_text("query", " " + "x" * 19_999) == "x" * 19_999


@pytest.mark.parametrize("path", ["", "relative", "./x"])
def test_paths_have_to_be_absolute(path: str) -> None:
    with pytest.raises(UsageError, match="the path must be absolute"):
        messages.check_folder(path)


def test_a_path_with_a_nul_is_told_so() -> None:
    with pytest.raises(UsageError, match="a NUL character"):
        messages.check_folder("/a\0b")


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        [{"jsonrpc": "2.0", "method": "status", "id": 1}],
        {"method": "status", "id": 1},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "method": 5, "id": 1},
        {"jsonrpc": "2.0", "method": "status", "id": 1.5},
        {"jsonrpc": "2.0", "method": "status", "id": True},
    ],
)
def test_what_is_no_request_is_refused(message: Any) -> None:
    with pytest.raises(messages.RpcError) as caught:
        messages.parse_request(message)
    assert caught.value.number == messages.INVALID_REQUEST


def test_errors_survive_the_wire() -> None:
    wire = messages.error_answer(3, BusyError("too much", hint="wait"))
    assert wire["error"]["code"] == BusyError.rpc_code
    back = messages.error_from_answer(wire["error"])
    assert (type(back), back.message, back.hint) == (BusyError, "too much", "wait")
    assert type(messages.error_from_answer({"code": 1, "message": "foreign"})) is KvdError
    assert type(messages.error_from_answer("nonsense")) is KvdError
