from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.source import syntax
from kvd.source.chunker import MAX_BYTES, TARGET_BYTES, SourceChunk, chunk_text


def checked(text: str, language: str) -> list[SourceChunk]:
    """The chunks, after checking what holds for all of them."""
    chunks = chunk_text("f", text, language)
    source = text.encode()
    lines = text.split("\n")
    end = 0
    for item in chunks:
        chunk = item.chunk
        assert end <= chunk.start_byte < chunk.end_byte
        assert not source[end : chunk.start_byte].strip()
        assert chunk.end_byte - chunk.start_byte <= MAX_BYTES
        assert source[chunk.start_byte : chunk.end_byte].decode() == chunk.text
        assert chunk.start_line == source[: chunk.start_byte].count(b"\n") + 1
        assert chunk.end_line == chunk.start_line + chunk.text.count("\n")
        assert chunk.text.split("\n")[0] in lines[chunk.start_line - 1]
        end = chunk.end_byte
    assert not source[end:].strip()
    return chunks


def function(name: str, size: int, indent: str = "") -> str:
    lines = [f"{indent}def {name}(value):"]
    while sum(map(len, lines)) < size:
        lines.append(f"{indent}    value = value + {len(lines)}")
    return "\n".join(lines) + "\n"


def test_small_siblings_are_merged_and_large_ones_stand_alone() -> None:
    text = (
        function("one", 200)
        + "\n\n"
        + function("two", 200)
        + "\n\n"
        + function("big", 2_000)
        + "\n\n"
        + function("end", 90)
    )
    chunks = checked(text, "python")
    assert [item.symbols for item in chunks] == [("one", "two"), ("big",), ("end",)]
    assert [item.chunk.scope for item in chunks] == ["one, two", "big", "end"]
    assert chunks[1].chunk.text == function("big", 2_000).rstrip()


def test_class_that_fits_is_whole() -> None:
    text = (
        "import os\n\n"
        + "X = 1\n" * 200
        + "\n\nclass Session:\n"
        + function("open", 900, "    ")
        + "\n"
        + function("close", 900, "    ")
    )
    chunks = checked(text, "python")
    assert chunks[-1].chunk.scope == "Session"
    assert chunks[-1].chunk.text.startswith("class Session:")
    assert chunks[-1].symbols == ("Session", "open", "close")


def test_large_class_is_split_at_its_methods() -> None:
    methods = [function(name, 1_200, "    ") for name in ("open", "read", "close")]
    chunks = checked('class Session:\n    """Doc."""\n\n' + "\n".join(methods), "python")
    assert [item.chunk.scope for item in chunks] == ["Session", "Session.read", "Session.close"]
    assert chunks[0].symbols == ("Session", "open")
    assert chunks[-1].chunk.text == methods[-1].rstrip()


def test_large_function_is_split_at_statements_and_keeps_its_scope() -> None:
    chunks = checked("class A:\n" + function("long", 8_000, "    "), "python")
    assert len(chunks) >= 4
    assert {item.chunk.scope for item in chunks[1:]} == {"A.long"}
    assert [item.symbols for item in chunks[1:]] == [()] * (len(chunks) - 1)
    for item in chunks[1:]:
        assert item.chunk.text.startswith("        value = value + ")


@pytest.mark.parametrize(
    ("language", "first", "second"),
    [
        ("python", function("a", 1_700), "# about b\n# more\n@decorated\n" + function("b", 300)),
        ("rust", "fn a() {\n" + "    let x = 1;\n" * 170 + "}\n", "/// about b\n#[inline]\nfn b() {\n    1;\n}\n"),
        (
            "java",
            "class A {\n" + "  int x = 1;\n" * 180 + "}\n",
            "/** about b */\n@Deprecated\nclass B {\n  int y;\n}\n",
        ),
        ("go", "func a() {\n" + "\tx := 1\n" * 290 + "}\n", "// about b\n// more\nfunc b() {\n}\n"),
        ("typescript", "function a() {\n" + "  let x = 1;\n" * 190 + "}\n", "// about b\nexport function b() {\n}\n"),
    ],
)
def test_comments_and_decorators_stay_with_what_follows(language: str, first: str, second: str) -> None:
    chunks = checked(first + "\n" + second, language)
    assert chunks[-1].chunk.text == second.rstrip()


def test_comment_after_code_stays_on_its_line() -> None:
    body = "".join(f"value_{number} = {number}  # note {number}\n" for number in range(300))
    for item in checked(body, "python"):
        for line in item.chunk.text.split("\n"):
            number = line.split("_")[1].split(" ")[0]
            assert line == f"value_{number} = {number}  # note {number}"


def test_closing_brackets_do_not_stand_alone() -> None:
    body = "".join(f"  void m{n}() {{ int x = {n}; }}\n" for n in range(200))
    for item in checked(f"class A {{\n{body}}}\n", "java"):
        assert item.chunk.text.strip() != "}"


def test_language_without_a_grammar_gets_line_windows() -> None:
    text = "\n\n".join(f"paragraph {number}\n" + "some words here\n" * 20 for number in range(40))
    chunks = checked(text, "text")
    assert len(chunks) > 5
    assert all(item.chunk.scope == "" and item.symbols == () for item in chunks)
    assert sum(item.chunk.text.startswith("paragraph") for item in chunks) == len(chunks)
    assert checked(text, "")[0].chunk.text == chunks[0].chunk.text


def test_one_line_of_60000_characters() -> None:
    chunks = checked("x" * 60_000, "text")
    assert all((item.chunk.start_line, item.chunk.end_line) == (1, 1) for item in chunks)
    assert len({item.chunk.start_byte for item in chunks}) == len(chunks) == 60_000 // TARGET_BYTES
    checked("'" + "é" * 30_000 + "'", "python")
    checked("€" * 30_000, "javascript")


def test_500_functions_on_one_line() -> None:
    chunks = checked("".join(f"function f(a){{return a+{n % 3}}}" for n in range(500)), "javascript")
    assert len(chunks) >= 4
    assert len({(item.chunk.start_byte, item.chunk.end_byte) for item in chunks}) == len(chunks)
    assert {item.chunk.start_line for item in chunks} == {1}


def test_identical_functions_are_chunks_of_their_own() -> None:
    one = function("same", 1_300)
    chunks = checked((one + "\n") * 5, "python")
    assert len(chunks) == 5
    assert len({item.chunk.text for item in chunks}) == 1
    assert len({item.chunk.start_line for item in chunks}) == 5


def test_markdown_section_of_54000_characters() -> None:
    text = (
        "# Top\n\nintro\n\n## Long\n\n"
        + "A sentence of some words. " * 2_100
        + "\n\n## After\n\n"
        + "The end of it. " * 150
    )
    chunks = checked(text, "markdown")
    assert chunks[0].chunk.scope.startswith("Top")
    assert chunks[-1].chunk.scope == "Top.After"
    assert {item.chunk.scope for item in chunks[2:-2]} == {"Top.Long"}


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "x = " + "(" * 8_000 + ")" * 8_000 + "\n"),
        ("javascript", "[" * 10_000 + "]" * 10_000),
        ("json", '{"a":' * 8_000 + "1" + "}" * 8_000),
        ("c", "{" * 10_000),
        ("html", "<div>" * 4_000 + "</div>" * 4_000),
        ("python", "".join(" " * n + "if x:\n" for n in range(900)) + " " * 900 + "pass\n"),
    ],
)
def test_deep_nesting(language: str, text: str) -> None:
    started = time.monotonic()
    checked(text, language)
    assert time.monotonic() - started < 20


def test_parsing_that_takes_too_long_falls_back_to_line_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    text = function("a", 9_000) * 10
    assert checked(text, "python")[0].chunk.scope == "a"
    monkeypatch.setattr(syntax, "MAX_PARSE_S", -1.0)
    assert {item.chunk.scope for item in checked(text, "python")} == {""}
    monkeypatch.undo()
    assert checked(text, "python")[0].chunk.scope == "a"
    monkeypatch.setattr(syntax, "MAX_PARSED_BYTES", 100)
    assert {item.chunk.scope for item in checked(text, "python")} == {""}


def test_large_file_in_bounded_time() -> None:
    text = "".join(function(f"f{n}", 300) + "\n" for n in range(2_000))
    started = time.monotonic()
    chunks = checked(text, "python")
    assert time.monotonic() - started < 15
    assert sum(len(item.symbols) for item in chunks) == 2_000


def test_blank_text_has_no_chunks() -> None:
    assert checked("", "python") == []
    assert checked(" \n\n\t\n", "python") == []
    assert checked("\n\n", "text") == []


def test_lines_after_characters_of_several_bytes() -> None:
    chunks = checked("# ünï€ 🙂\n" * 400 + "def found():\n    return '🙂'\n", "python")
    last = chunks[-1].chunk
    assert last.end_line == 402
    assert "def found" in last.text


def test_syntax_errors_are_no_errors() -> None:
    checked("def (:\n  class\n}}}} " * 300, "python")
    checked("<?php function ( {{{ class" * 200, "php")


def test_target_is_kept_by_merged_chunks() -> None:
    text = "".join(function(f"f{n}", 150) + "\n" for n in range(200))
    chunks = checked(text, "python")
    sizes = [len(item.chunk.text) for item in chunks[:-1]]
    assert max(sizes) <= TARGET_BYTES
    assert min(sizes) > TARGET_BYTES - 200


_PIECES = st.sampled_from(
    ["def f():\n", "class A:\n", "    x = 1\n", "\n", "(", ")", "{", "}", "# c\n", "'", '"', "é", "🙂" * 300, "\t", ";"]
)


@settings(max_examples=40, deadline=None)
@given(st.lists(_PIECES, max_size=120), st.sampled_from(["python", "javascript", "markdown", "yaml", "rust", "text"]))
def test_any_text(pieces: list[str], language: str) -> None:
    checked("".join(pieces), language)
