from __future__ import annotations

import pytest

from kvd import paths
from kvd.daemon import logs
from tests.test_regular import put


def recurse(depth: int) -> None:
    if depth:
        recurse(depth - 1)
    raise ValueError("what was asked")


def described(depth: int) -> str:
    with pytest.raises(ValueError, match="asked") as caught:
        recurse(depth)
    return logs.describe_fault(caught.value)


def test_a_fault_is_described_by_kind_and_place() -> None:
    said = described(2)
    assert said.startswith(f"ValueError at {__file__}:")
    assert said.count(" recurse") == 3
    assert said.endswith(" described")
    assert "asked" not in said


def test_a_deep_fault_is_cut_in_the_middle() -> None:
    said = described(500)
    assert said.count(" recurse") == 19
    assert " < 482 more < " in said
    assert said.endswith(" described")


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_log_that_is_no_file_is_an_error(kind: str) -> None:
    put(paths.log_file(), kind)
    with pytest.raises(OSError, match=f"it is a (named )?{kind}, not a file"):
        logs.set_up()
