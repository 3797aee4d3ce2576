"""A day's work in a real git repository: what is read, cut and embedded again at each step, and that no ghosts stay."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from kvd import paths
from kvd.config import Settings
from kvd.recall import database
from kvd.recall.rank import search
from kvd.service import update
from kvd.service.indexer import Means, update_index
from kvd.source.content import Content
from kvd.source.cutter import Cutter, Item, WarmCutters
from kvd.source.tree import list_files, read_file
from tests.fakes.hashed_words import HashedWords

T = TypeVar("T")

FILES = 12


@dataclass
class Work:
    """What one index run has redone."""

    read: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    embedded: int = 0


class Watched(HashedWords):
    def __init__(self, work: Work) -> None:
        self.work = work

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.work.embedded += len(texts)
        return super().embed_documents(texts)


class Day:
    """One user's working copy; `index` tells what it took to bring the index up to date, and checks it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._cutters = WarmCutters()
        self._monkeypatch = monkeypatch

    def git(self, *arguments: str) -> None:
        subprocess.run(["git", "-C", str(self.root), *arguments], check=True, capture_output=True)

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def index(self, root: Path | None = None) -> Work:
        work = Work()
        cut = Cutter.cut

        def reading(root: Path, path: str, limit: int) -> bytes | None:
            work.read.append(path)
            return read_file(root, path, limit)

        def cutting(self: Cutter, items: Iterable[Item[T]]) -> Iterator[tuple[Item[T], Content]]:
            for item, content in cut(self, items):
                work.cut.append(item.path)
                yield item, content

        with self._monkeypatch.context() as patch:
            patch.setattr(update, "read_file", reading)
            patch.setattr(Cutter, "cut", cutting)
            means = Means(Watched(work), cutters=self._cutters)
            root = root or self.root
            summary = update_index(root, Settings(), lambda progress: None, lambda: False, means)
        assert summary.pending_vectors == 0
        check(root)
        return work

    def end(self) -> None:
        self._cutters.close_if_idle()


def check(root: Path) -> None:
    """The index holds what is on disk, all of it and nothing else."""
    db = database.open_for_reading(paths.index_file(root), root)
    try:
        chunks = database.rows(
            db, "SELECT chunks.id, path, start_line, end_line, text FROM chunks JOIN files ON files.id = file_id"
        )
        assert {path for _, path, *_ in chunks} == {
            entry.path for entry in list_files(root).files if (root / entry.path).read_text().strip()
        }
        for _, path, start, end, text in chunks:
            assert "\n".join((root / path).read_text().split("\n")[start - 1 : end]) == text
        numbers = {row[0] for row in chunks}
        for table in ("words", "vectors"):
            assert {row[0] for row in database.rows(db, f"SELECT rowid FROM {table}")} == numbers
    finally:
        db.close()


def source(name: str, functions: int = 5) -> str:
    """One chunk for each function."""
    return "\n\n".join(
        f"def {name}_{number}(value):\n" + f"    value = {name}(value, {number})\n" * 50 for number in range(functions)
    )


def found(day: Day, name: str) -> list[str]:
    """The files in which a search for the name finds it."""
    return sorted({hit.chunk.path for hit in search(day.root, name, 9) if name in hit.chunk.text})


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    root = tmp_path / "repository"
    root.mkdir()
    day = Day(root, monkeypatch)
    day.git("init", "-q", "-b", "main")
    for number in range(FILES):
        day.write(f"src/f{number}.py", source(f"first{number}"))
    day.git("add", ".")
    day.git("commit", "-qm", "first")
    yield day
    day.end()


def test_a_day(day: Day, tmp_path: Path) -> None:
    def step(act: Callable[[], object], changed: int, embedded: int) -> None:
        """`changed` files are cut again and `embedded` texts embedded; git may touch others, which are read only."""
        act()
        work = day.index()
        assert (len(work.cut), work.embedded) == (changed, embedded), work
        assert set(work.cut) <= set(work.read)
        # What was touched within the same moment is read once more, and never cut.
        assert day.index().cut == []

    step(lambda: None, FILES, FILES * 5)

    def edit() -> None:
        day.write("src/f0.py", source("first0").replace("first0(value, 3)", "edited(value, 3)"))

    # One function: its file is cut, its chunk alone is embedded.
    step(edit, 1, 1)
    assert found(day, "edited") == ["src/f0.py"]
    # Put away and taken out again: both contents are known.
    step(lambda: day.git("stash"), 1, 0)
    assert found(day, "edited") == []
    step(lambda: day.git("stash", "pop"), 1, 0)
    assert found(day, "edited") == ["src/f0.py"]
    day.git("commit", "-qam", "edit")

    def branch() -> None:
        day.git("checkout", "-qb", "side", "HEAD~1")
        day.write("src/f1.py", source("side"))
        day.write("src/new.py", source("fresh", 2))
        day.git("add", ".")
        day.git("commit", "-qm", "side")

    # f0 goes back to what was embedded this morning.
    step(branch, 3, 7)
    step(lambda: day.git("checkout", "-q", "main"), 2, 0)
    assert found(day, "fresh_1") == []
    step(lambda: day.git("checkout", "-q", "side"), 3, 0)
    assert found(day, "fresh_1") == ["src/new.py"]
    # Rebased onto main: f0 is the edited one again.
    step(lambda: day.git("rebase", "-q", "main"), 1, 0)
    assert found(day, "edited") == ["src/f0.py"]

    # The path is a part of what is embedded, so a rename costs vectors, but renaming back does not.
    step(lambda: day.git("mv", "src/f2.py", "src/renamed.py"), 1, 5)
    assert found(day, "first2") == ["src/renamed.py"]
    step(lambda: day.git("mv", "src/renamed.py", "src/f2.py"), 1, 0)
    assert found(day, "first2") == ["src/f2.py"]

    # From five chunks to three, to none, and away.
    step(lambda: day.write("src/f3.py", source("first3", 3)), 1, 0)
    assert found(day, "first3_4") == found(day, "first3_3") == []
    step(lambda: day.write("src/f3.py", ""), 0, 0)
    assert found(day, "first3_1") == []
    step(lambda: (day.root / "src" / "f4.py").unlink(), 0, 0)
    assert found(day, "first4_1") == []
    step(lambda: day.git("checkout", "-q", "."), 2, 0)
    assert found(day, "first4_1") == ["src/f4.py"]

    # Another worktree has an index of its own, whose vectors are all known.
    other = tmp_path / "worktree"
    day.git("worktree", "add", "-q", str(other), "main")
    work = day.index(other)
    assert (len(work.cut), work.embedded) == (FILES, 0)
    assert len(day.index().cut) == 0


def test_changes_in_any_order_leave_what_is_on_disk(day: Day) -> None:
    random = Random(20)

    def files() -> list[Path]:
        return sorted(path for path in (day.root / "src").rglob("*.py") if path.is_file())

    def move(file: Path) -> None:
        target = day.root / "src" / f"sub{random.randrange(3)}" / f"moved{random.randrange(6)}.py"
        target.parent.mkdir(exist_ok=True)
        file.replace(target)

    acts: list[Callable[[Path], object]] = [
        lambda file: file.write_text(source(f"name{random.randrange(4)}", random.randrange(7))),
        lambda file: file.write_text(file.read_text() + f"\nlast_{random.randrange(9)} = 1\n"),
        lambda file: file.with_name(f"copy{random.randrange(4)}.py").write_text(file.read_text()),
        lambda file: file.unlink(),
        move,
        lambda file: day.git("checkout", "-q", "."),
        lambda file: day.git("clean", "-qfd"),
    ]
    for _ in range(30):
        for _ in range(random.randrange(1, 5)):
            if present := files():
                random.choice(acts)(random.choice(present))
        day.index()
