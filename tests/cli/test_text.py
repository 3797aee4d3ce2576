from __future__ import annotations

from pathlib import Path

import pytest

from kvd_cli.progress import describe
from kvd_cli.tail import last_lines
from kvd_cli.text import clean, clean_line, duration, file_size


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain é 漢 😀\n\tindented", "plain é 漢 😀\n\tindented"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x1b\\", "link"),
        ("half \x1b", "half "),
        ("\x9b2Jx", "x"),
        ("a\rb\x00c\x7fd", "abcd"),
        ("\u202egnp.exe", "gnp.exe"),
        ("\u061c\u200e\u200f\u202a\u2066a\u2069\u202c", "a"),
    ],
)
def test_what_is_left_for_a_terminal(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


def test_one_line() -> None:
    assert clean_line("a\nb\tc") == "a b c"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (12_345, "12 kB"), (8e9, "8.0 GB"), (5e12, "5000.0 GB")]
)
def test_sizes(count: float, text: str) -> None:
    assert file_size(count) == text


def test_durations() -> None:
    assert [duration(seconds) for seconds in (3, 300, 7200)] == ["3 s", "5 min", "2 h"]


def test_stages_in_words() -> None:
    value = {"stage": "index", "done": 312, "total": 1024, "message": "a\x1b[1m\nb"}
    assert describe(value) == "indexing 312/1,024 files a b"
    assert describe({"stage": "load", "message": "m"}) == "loading the model m"
    assert describe({"stage": "unheard of"}) == "unheard of"


@pytest.mark.parametrize("count", [0, 1, 3, 5000, 20_000])
def test_the_end_of_a_file(tmp_path: Path, count: int) -> None:
    file = tmp_path / "log"
    assert last_lines(file, count) == []
    lines = [f"line {number} {'x' * 40}" for number in range(10_000)]
    file.write_text("\n".join(lines) + "\n")
    assert last_lines(file, count) == lines[max(0, len(lines) - count) :]
