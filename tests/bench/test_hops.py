"""The questions of `kvd bench hops`, and what is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvd.bench.hops import Hop, lines, read_sets
from kvd.errors import UsageError

SETS = Path(__file__).parent / "hops"


def test_the_sets_are_whole() -> None:
    sets = read_sets(SETS)
    hops = [hop for one in sets for hop in one.hops]
    assert len(sets) >= 3
    assert len({hop.text for hop in hops}) == len(hops) >= 20


def test_what_is_no_set_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read_sets(tmp_path)
    (tmp_path / "a.json").write_text('{"name": "a"}')
    with pytest.raises(UsageError, match="questions"):
        read_sets(tmp_path)


def test_an_answer_is_where_its_text_is(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n\n\ndef found():\n")
    assert Hop("?", "a.py", "def found(").line(tmp_path) == 4
    with pytest.raises(UsageError, match="lost"):
        Hop("?", "a.py", "def lost(").line(tmp_path)


def test_the_table_counts_questions_by_rounds() -> None:
    found = {"file": [False, True, True], "lines": [False, False, True], "pieces": [3, 5, 6], "ms": [1000.0, 3000.0]}
    other = {"recalled_file": [False, False, True], "recalled_lines": [False, False, False]}
    table = list(lines({"pieces": 3, "budget": 1000, "questions": [{**found, **other}]}))
    assert [row.split() for row in table[2:5]] == [
        ["0", "3.0", "0", "0", "|", "0", "0"],
        ["1", "5.0", "1", "0", "|", "0", "0"],
        ["2", "6.0", "1", "1", "|", "1", "0"],
    ]
    assert table[5] == "2 calls, 2.0 s each (median)"
