from __future__ import annotations

from pathlib import Path

import pytest

from kvd.errors import KvdError
from kvd_cli.tail import last_lines
from tests.test_regular import put


def test_the_last_lines_of_a_log(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert last_lines(file, 2) == []
    file.write_text("a\n" * 40_000 + "b\x1b[1m\nc\n")
    assert last_lines(file, 2) == ["b", "c"]
    assert last_lines(Path("/dev/null"), 2) == []


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_log_that_is_no_file_is_said(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "log"
    put(file, kind)
    with pytest.raises(KvdError, match=f"can't read {file}: it is a (named )?{kind}") as caught:
        last_lines(file, 2)
    assert caught.value.hint
