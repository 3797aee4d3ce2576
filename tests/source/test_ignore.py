from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvd.errors import UsageError
from kvd.source.ignore import matcher
from kvd.source.tree import list_files

Git = Callable[..., bytes]


@pytest.fixture
def root(tmp_path: Path, git: Git) -> Path:
    git(tmp_path, "init", "-q")
    names = (
        "a.py",
        "vendor/big.c",
        "vendor/keep.c",
        "src/b.py",
        "src/vendor/c.py",
        "src/gen/d.py",
        "doc/e.md",
        "x.log",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    git(tmp_path, "add", "a.py", "vendor")
    (tmp_path / ".gitignore").write_text("*.log\n")
    return tmp_path


def listed(root: Path) -> list[str]:
    return [entry.path for entry in list_files(root).files]


@pytest.mark.parametrize("use_git", [True, False])
def test_it_comes_on_top_of_what_git_ignores(root: Path, monkeypatch: pytest.MonkeyPatch, use_git: bool) -> None:
    if not use_git:
        monkeypatch.setenv("PATH", "/nonexistent")
    (root / ".kvdignore").write_text("# ours\n/vendor/*\n!keep.c\n*.md\n!x.log\n")
    (root / "src" / ".kvdignore").write_text("/gen/\n")
    found = list_files(root)
    # Tracked files too; what git ignores can't be brought back.
    assert [entry.path for entry in found.files] == [
        *(".gitignore", ".kvdignore", "a.py", "src/.kvdignore", "src/b.py", "src/vendor/c.py", "vendor/keep.c")
    ]
    assert found.skipped["kvdignore"] == 3


def test_the_root_s_file_counts_even_where_git_ignores_it(root: Path) -> None:
    (root / ".git" / "info" / "exclude").write_text(".kvdignore\n")
    (root / ".kvdignore").write_text("src/\n")
    assert listed(root) == [".gitignore", "a.py", "doc/e.md", "vendor/big.c", "vendor/keep.c"]


def test_a_broken_one_hides_nothing(root: Path) -> None:
    everything = listed(root)
    (root / ".kvdignore").mkdir()
    assert listed(root) == everything
    (root / ".kvdignore").rmdir()
    (root / ".kvdignore").write_bytes(b"\xff\xfe\\\n[\n\0\n")
    assert listed(root) == sorted([*everything, ".kvdignore"])


def test_patterns_of_the_settings() -> None:
    none, some = matcher("  "), matcher("tests/certs/ *.example.pem")
    assert not none("a.pem")
    assert [some(path) for path in ("tests/certs/a.key", "deep/x.example.pem", "certs/a.key", "a.pem")] == [
        *(True, True, False, False)
    ]


@pytest.mark.parametrize("patterns", ["!", "\\", "*.py\\"])
def test_what_is_no_pattern_is_an_error(patterns: str) -> None:
    with pytest.raises(UsageError, match="no list of patterns"):
        matcher(patterns)
