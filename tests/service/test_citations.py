from __future__ import annotations

import pytest

from kvd.service.citations import cited_chunks
from kvd.types import Chunk


def chunk(path: str, start: int, end: int) -> Chunk:
    return Chunk(path, "python", "", start, end, 0, 0, "")


PROMPT = [chunk("src/app/main.py", 10, 20), chunk("src/lib/main.py", 5, 8), chunk("docs/my notes.md", 1, 3)]


@pytest.mark.parametrize(
    ("answer", "cited"),
    [
        ("It starts there [1].", {0}),
        ("See [1], [2] and [3].", {0, 1, 2}),
        ("See [1, 3].", {0, 2}),
        ("See [2][3].", {1, 2}),
        ("`[2]` shows it", {1}),
        ("[4] [0] [99] [-1] [x] [12345]", set()),
        ("items[1] = f()[2]", set()),
        ("`x = [1]`", set()),
        ("```python\nx = [1]\n```\nsee [2]", {1}),
        ("```\nan answer that ends in [1]", set()),
        ("src/app/main.py:12", {0}),
        ("./src/app/main.py:12", {0}),
        ("`src/app/main.py:20-25`", {0}),
        ("app/main.py:9-10", {0}),
        ("(main.py:6)", {1}),
        ("main.py:1-30", {0, 1}),
        ("main.py:15–18", {0}),
        ("docs/my notes.md:2", {2}),
        ("src/app/main.py:21", set()),
        ("src/app/main.py", set()),
        ("other/main.py:12", set()),
        ("domain.py:12", set()),
        ("main.pyx:12", set()),
        ("../src/app/main.py:12", set()),
        ("main.py:99999999999999999999", set()),
        ("", set()),
    ],
)
def test_what_counts_as_a_citation(answer: str, cited: set[int]) -> None:
    assert cited_chunks(answer, PROMPT) == cited


def named(path: str, scope: str) -> Chunk:
    return Chunk(path, "python", scope, 1, 9, 0, 90, f"func (s *{scope}) inside_{path[4:6]}(x) {{")


NAMED = [
    named("src/session.py", "Session, Session.open"),
    named("src/session.py", "Session.close"),
    named("src/auth.py", "login, check_password"),
    named("src/ui.py", "get"),
]


@pytest.mark.parametrize(
    ("answer", "cited"),
    [
        ("It is `close` that does it.", {1}),
        ("It is `Session.close()` that does it.", {1}),
        ("Both `check_password(user, ...)` and `open` do.", {0, 2}),
        ("See `auth.py` and `src/ui.py`.", {2, 3}),
        ("See `session.py`, which two chunks are of.", set()),
        ("`Session`, `src/other.py` and `logout` name no single chunk, and `get` is too short.", {0}),
        ("`inside_au` is a method there.", {2}),
        ("Without a code span, close and login are words.", set()),
    ],
)
def test_naming_just_one_chunk_in_code_cites_it(answer: str, cited: set[int]) -> None:
    assert cited_chunks(answer, NAMED) == cited
