from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kvd.bench.checkouts import checked_out, revision_of
from kvd.bench.questions import default_folder, read_sets, selected
from kvd.errors import RepositoryError, UsageError

SET = """
repository = "example/{name}"
url = "{url}"
revision = "{revision}"
language = "python"
"""
QUESTION = """
[[questions]]
id = "{id}"
question = "When is a session expired?"
answer = "When its lifetime is over: `Session.is_expired` compares the times."
files = ["{file}"]
"""


def a_set(folder: Path, name: str, count: int, url: str = "", revision: str = "", file: str = "a.py") -> None:
    text = SET.format(name=name, url=url, revision=revision)
    text += "".join(QUESTION.format(id=f"{name}-{number}", file=file) for number in range(count))
    (folder / f"{name}.toml").write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "sets"
    folder.mkdir()
    return folder


@pytest.fixture
def checkouts(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        (tmp_path / "checkouts" / name).mkdir(parents=True)
        (tmp_path / "checkouts" / name / "a.py").write_text("pass\n")
    return tmp_path / "checkouts"


def test_the_projects_own_sets_are_whole() -> None:
    sets = read_sets(default_folder())
    questions = [question for found in sets for question in found.questions]
    assert len(questions) >= 40
    assert len(sets) >= 4
    assert len({found.language for found in sets}) >= 3
    assert len({question["id"] for question in questions}) == len(questions)
    assert all(len(question["answer"].split()) >= 20 and question["files"] for question in questions)


def test_questions_are_taken_in_turn_from_the_repositories(folder: Path, checkouts: Path) -> None:
    a_set(folder, "one", 3)
    a_set(folder, "two", 1)
    sets = read_sets(folder)
    assert [q.id for q in selected(sets, checkouts, quick=False)] == ["one-0", "two-0", "one-1", "one-2"]
    assert [q.id for q in selected(sets, checkouts, quick=True)] == ["one-0", "two-0"]
    assert [q.id for q in selected(sets, checkouts, quick=False, limit=3)] == ["one-0", "two-0", "one-1"]
    assert selected(sets, checkouts, quick=True)[1].root == checkouts / "two"


def test_a_repository_is_cloned_at_its_revision(folder: Path, tmp_path: Path, repository: Path) -> None:
    revision = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True, check=True
    ).stdout.strip()
    (repository / "later.py").write_text("pass\n")
    subprocess.run(["git", "add", "."], cwd=repository, check=True)
    subprocess.run(["git", "commit", "-qm", "later"], cwd=repository, check=True)
    a_set(folder, "mine", 1, url=f"file://{repository}", revision=revision, file="src/session.py")
    (found,) = selected(read_sets(folder), tmp_path / "checkouts", quick=False)
    assert (found.root / "src" / "session.py").exists()
    assert not (found.root / "later.py").exists()
    assert revision_of(found.root) == revision
    # Of a folder inside another repository nothing is known.
    assert revision_of(found.root / "src") == ""


def test_what_can_not_be_cloned_is_said_and_leaves_no_checkout(folder: Path, tmp_path: Path) -> None:
    a_set(folder, "gone", 1, url=f"file://{tmp_path}/nowhere", revision="0" * 40)
    (found,) = read_sets(folder)
    for _ in range(2):
        with pytest.raises(RepositoryError, match="can't get file://") as error:
            checked_out(found.name, found.url, found.revision, tmp_path / "checkouts")
        assert error.value.hint == f"put a checkout of it at {tmp_path}/checkouts/gone"
    assert not (tmp_path / "checkouts" / "gone").exists()


def test_an_address_is_no_option_of_git(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="can't get --upload-pack"):
        checked_out("x", f"--upload-pack=touch {tmp_path}/done; git-upload-pack", ".", tmp_path / "checkouts")
    assert not (tmp_path / "done").exists()


def test_checkouts_need_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RepositoryError, match="can't make the folder"):
        checked_out("x", "", "", tmp_path / "file")


def test_a_checkout_of_something_else_is_noticed(folder: Path, checkouts: Path) -> None:
    a_set(folder, "one", 1, file="b.py")
    with pytest.raises(RepositoryError, match=r"one has no b\.py"):
        selected(read_sets(folder), checkouts, quick=False)


@pytest.mark.parametrize(
    "text", ["", "x = ", "url = 'a'\nrevision = 'b'\nlanguage = 'c'", SET + "[[questions]]\nid = 'a'\n"]
)
def test_a_file_that_is_no_set_is_named(folder: Path, text: str) -> None:
    (folder / "bad.toml").write_text(text)
    with pytest.raises(UsageError, match=r"bad\.toml is not a question set"):
        read_sets(folder)


def test_a_folder_without_sets_is_an_error(folder: Path) -> None:
    with pytest.raises(UsageError, match="no question sets"):
        read_sets(folder)
