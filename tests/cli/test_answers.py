from __future__ import annotations

import io
from typing import Any

import pytest

from kvd_cli.answers import Stream, index_line, source_lines, stats_line


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["\n", " It is", " here", ".\n", "\n"], "It is here.\n"),
        (["a\n", "\n", "b"], "a\n\nb\n"),
        (["  code:\n", "    x = 1"], "code:\n    x = 1\n"),
        (["red\x1b", "[31m"], "red[31m\n"),
        ([" \n"], ""),
    ],
)
def test_an_answer_is_shown_without_the_blanks_around_it(pieces: list[str], shown: str) -> None:
    out = io.StringIO()
    stream = Stream(out, quiet=False)
    for piece in pieces:
        stream.write(piece)
    stream.break_off()
    assert out.getvalue() == shown


def test_an_answer_that_did_not_stream_is_shown_at_the_end() -> None:
    out = io.StringIO()
    stream = Stream(out, quiet=False)
    stream.finish({"answer": "whole"})
    assert out.getvalue() == "whole\n"


def result(**changes: Any) -> dict[str, Any]:
    tokens = dict.fromkeys(
        ("recalled", "resident", "reused_hot", "reused_cold", "recomputed", "prefilled", "fresh", "generated"), 0
    )
    tokens.update(changes.pop("tokens", {}))
    times = {"recall": 1.0, "load": 1.0, "ttft": 1900.0, "total": 3000.0, "model_load": 0.0}
    times.update(changes.pop("timings_ms", {}))
    return {
        "tokens": tokens,
        "timings_ms": times,
        "finish": "stop",
        "sources": [],
        "memories": [],
        "model": "",
        **changes,
    }


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (
            result(tokens={"recalled": 2013, "resident": 950, "reused_hot": 1000, "recomputed": 13, "prefilled": 50}),
            "2,013 tokens of code recalled (1,950 from memory, 63 computed) · first word after 1.9 s",
        ),
        (
            result(tokens={"recalled": 20, "reused_cold": 20}, timings_ms={"model_load": 3210.0}),
            "20 tokens of code recalled (20 from disk) · first word after 1.9 s, not counting 3.2 s to load the model",
        ),
        (
            result(tokens={"generated": 512}, finish="length"),
            "0 tokens of code recalled · first word after 1.9 s · cut off at 512 tokens",
        ),
        (
            result(model="qwen\x1b2.5"),
            "0 tokens of code recalled · first word after 1.9 s · qwen2.5",
        ),
        (
            result(tokens={"recalled": 1, "reused_cold": 1, "generated": 1}, finish="length"),
            "1 token of code recalled (1 from disk) · first word after 1.9 s · cut off at 1 token",
        ),
    ],
)
def test_statistics(value: dict[str, Any], line: str) -> None:
    assert stats_line(value) == line


def test_sources() -> None:
    source = {"path": "a\x1b[1m.py", "start_line": 1, "end_line": 9, "symbol": "A.b", "cited": True}
    plain = {"path": "b.md", "start_line": 2, "end_line": 2, "symbol": "", "cited": False}
    assert source_lines(result(sources=[source, plain])) == ["", "Sources:", "  * a.py:1-9  A.b", "    b.md:2-2"]
    memory = {"session": "login", "turn": 3, "asked_at": 1_764_000_000.0, "stale": True, "cited": True}
    line = "  * memory  login, turn 3, 2025-11-24 (the code has changed since)"
    assert source_lines(result(memories=[memory])) == ["", "Sources:", line]
    assert source_lines(result()) == []


def test_a_summary_names_what_was_skipped() -> None:
    summary = {
        "repo": "/r", "files": 1200, "chunks": 9, "added": 0, "changed": 3, "deleted": 1, "unchanged": 1197,
        "skipped": {"too large": 1, "binary": 2}, "seconds": 1.26, "rebuilt": "", "by_lines": 0,
        "pending_vectors": 0,
    }  # fmt: skip
    line = "indexed /r: 1,200 files, 9 chunks (3 changed, 1 deleted, 1,197 unchanged)"
    assert index_line(summary) == line + ", skipped 3 (2 binary, 1 too large), in 1.3 s"
    assert ", 4 cut by lines for want of a grammar, skipped" in index_line({**summary, "by_lines": 4})
    assert index_line({**summary, "pending_vectors": 1234}).endswith("in 1.3 s; 1,234 vectors to come")
    assert index_line({**summary, "rebuilt": "damaged file"}).endswith("; made anew: damaged file")
