"""Question sets with reference answers, and the checkouts that they are about.

A set is a TOML file: `repository`, `url`, `revision`, `language`, and `[[questions]]` with `id`, `question`,
`answer` (true of that revision) and `files` (which hold the answer). The sets of kvd's own repository are in
`tests/bench/questions`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvd.bench.checkouts import checked_out
from kvd.errors import RepositoryError, UsageError

_QUICK = 1
"""Questions of each set in a quick run."""


@dataclass(frozen=True, slots=True)
class BenchQuestion:
    """A question about the repository at `root`, and a true answer to it."""

    id: str
    root: Path
    text: str
    answer: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """The questions of one repository."""

    name: str
    url: str
    revision: str
    language: str
    questions: tuple[dict[str, Any], ...]

    def at(self, root: Path) -> list[BenchQuestion]:
        """The questions, about a checkout at `root`. Raises `RepositoryError` when it lacks the answers' files."""
        found = []
        for entry in self.questions:
            missing = [name for name in entry["files"] if not (root / name).is_file()]
            if missing:
                raise RepositoryError(
                    f"{root} has no {missing[0]}: it is not {self.name} at {self.revision[:12]}",
                    hint=f"remove {root}, it is cloned again",
                )
            found.append(BenchQuestion(entry["id"], root, entry["question"], entry["answer"], tuple(entry["files"])))
        return found


def default_folder() -> Path:
    """The sets beside this source tree; an installed wheel has none."""
    return Path(__file__).resolve().parents[2] / "tests" / "bench" / "questions"


def read_sets(folder: Path) -> list[QuestionSet]:
    """All sets of `folder`. Raises `UsageError` where there are none, or for one that is not as described above."""
    files = sorted(folder.glob("*.toml"))
    if not files:
        hint = "give --questions a folder that has some: tests/bench/questions in a clone of kvd"
        raise UsageError(f"no question sets in {folder}", hint=hint)
    return [_read_set(file) for file in files]


def _read_set(file: Path) -> QuestionSet:
    try:
        data = tomllib.loads(file.read_text("utf-8"))
        questions = data["questions"]
        for entry in questions:
            if not all(isinstance(entry[name], str) and entry[name].strip() for name in ("id", "question", "answer")):
                raise ValueError("id, question and answer must be text")
            if not all(isinstance(name, str) for name in entry["files"]):
                raise ValueError("files must be a list of paths")
        return QuestionSet(file.stem, data["url"], data["revision"], data["language"], tuple(questions))
    except (
        tomllib.TOMLDecodeError,
        OSError,
        UnicodeDecodeError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise UsageError(f"{file} is not a question set: {error}", hint="see tests/bench/questions") from error


def selected(sets: Sequence[QuestionSet], folder: Path, quick: bool, limit: int = 0) -> list[BenchQuestion]:
    """The questions of a run, taken in turn from the sets, so that any part is about all of the repositories."""
    columns = [item.at(checked_out(item.name, item.url, item.revision, folder)) for item in sets]
    rows = [column[index] for index in range(max(map(len, columns))) for column in columns if index < len(column)]
    if quick:
        rows = rows[: _QUICK * len(columns)]
    return rows[:limit] if limit else rows
