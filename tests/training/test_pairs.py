from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvd.training.archives import sources
from kvd.training.docs import plain
from kvd.training.held import write_benchmark
from kvd.training.pairs import Pair, pairs_of

PYTHON = '''"""Keeps sessions of users alive."""


class Session:
    """A connection of one user to the server."""

    def close_quietly(self, timeout):
        """Shut the socket down without complaining.

        :param timeout: seconds
        """
        self.socket.settimeout(timeout)
        try:
            self.socket.shutdown()
        except OSError:
            # The other side was faster than we are.
            pass
        self.pool.give_back(self)
'''
GO = """package queue

// Push appends a message behind all others.
func (q *Queue) Push(message Message) {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.items = append(q.items, message)
}
"""
FILES = {"p/session.py": PYTHON, "p/queue.go": GO, "p/vendor/click/core.py": PYTHON, "p/data.json": '{"a": 1}'}


def packed(folder: Path, files: Mapping[str, str]) -> Path:
    archive = folder / "sample-1.0.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for path, text in files.items():
            item = tarfile.TarInfo(path)
            item.size = len(text.encode())
            tar.addfile(item, io.BytesIO(text.encode()))
    return archive


def of_kind(pairs: list[Pair], kind: str) -> dict[str, Pair]:
    return {pair.query: pair for pair in pairs if pair.kind == kind}


def test_copies_of_other_packages_and_data_are_left_out(tmp_path: Path) -> None:
    assert {path for path, _, _ in sources(packed(tmp_path, FILES))} == {"session.py", "queue.go"}


def test_a_doc_asks_for_its_definition_without_itself(tmp_path: Path) -> None:
    docs = of_kind(pairs_of(packed(tmp_path, FILES)), "doc")
    close = docs["Shut the socket down without complaining."]
    assert close.path == "session.py"
    assert "complaining" not in close.text
    assert "self.socket.shutdown()" in close.text
    push = docs["Push appends a message behind all others."]
    assert "append(q.items, message)" in push.text
    assert "behind" not in push.text


def test_a_damaged_archive_teaches_nothing(tmp_path: Path) -> None:
    archive = packed(tmp_path, FILES)
    archive.write_bytes(archive.read_bytes()[:40])
    assert pairs_of(archive) == []


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("/**\n * Reads a whole folder at once.\n *\n * @param path where\n */", "Reads a whole folder at once."),
        ("// Package log writes\n// lines of text.", "Package log writes lines of text."),
        ('"""Return the `name` of a user."""', "Return the name of a user."),
        ("--- Walks a tree of tables.\n-- @param t the tree", "Walks a tree of tables."),
        ("-- | Parse an argument list", "Parse an argument list"),
        ("# Copyright 2020 the authors of this file", ""),
        ("// ok", ""),
        ("// x = f(y[1]) + 2 * g(z);", ""),
    ],
)
def test_what_a_comment_says(comment: str, said: str) -> None:
    assert plain(comment) == said


def test_held_out_packages_become_a_benchmark(tmp_path: Path) -> None:
    from kvd.bench.recall import read_benchmark

    write_benchmark([packed(tmp_path, FILES)], tmp_path / "held")
    (repository,) = read_benchmark(tmp_path / "held")
    asked = {query.text: query for query in repository.queries if query.category == "lines"}
    (target,) = asked["Push appends a message behind all others"].targets
    assert (target.path, target.lines) == ("queue.go", (4, 8))
    # The question's own words are gone, and no line has moved.
    kept = (tmp_path / "held/checkouts/sample/queue.go").read_text()
    assert "behind" not in kept
    assert kept.splitlines()[3].startswith("func (q *Queue) Push")
