from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw
import numpy as np
import pytest
from numpy.typing import NDArray

from kvd import paths
from kvd.errors import UnavailableError
from kvd.recall import database
from kvd.recall.candidates import Candidate, Gathered
from kvd.recall.embed import label
from kvd.recall.index import IndexWriter, NewFile, counts, only_writer
from kvd.recall.relevance import relevant
from kvd.recall.scores import DEFAULT_WEIGHTS
from kvd.recall.vector_cache import VectorCache, vector_key
from kvd.recall.vectors import fill_vectors
from kvd.types import Chunk
from tests.fakes.hashed_words import HashedWords


class Counting(HashedWords):
    """Remembers what it was asked to embed."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.texts += texts
        return super().embed_documents(texts)


def never() -> bool:
    return False


def a_file(path: str, *texts: str) -> NewFile:
    chunks = [(Chunk(path, "python", "", n + 1, n + 1, 0, len(text), text), ()) for n, text in enumerate(texts)]
    return NewFile(path, 1, 1, 1, b"h", "python", "", False, chunks)


@pytest.fixture
def embedder() -> Counting:
    return Counting()


@pytest.fixture
def cache() -> Iterator[VectorCache]:
    with VectorCache(paths.vectors_file()) as cache:
        yield cache


def an_index(root: Path, embedder: HashedWords, *files: NewFile) -> apsw.Connection:
    file = paths.index_file(root)
    with only_writer(file, never):
        db, _ = database.open_for_writing(file, root, "1")
        writer = IndexWriter(db, embedder)
        writer.use_embedder()
        writer.put(files)
    return db


def filled(db: apsw.Connection, embedder: HashedWords, cache: VectorCache) -> apsw.Connection:
    fill_vectors(db, embedder, cache, never)
    return db


def vectors_of(db: apsw.Connection) -> dict[str, bytes]:
    """By the chunks' texts."""
    rows = database.rows(db, "SELECT text, embedding FROM vectors JOIN chunks ON chunks.id = vectors.rowid")
    return {str(text): bytes(vector) for text, vector in rows}


def test_chunks_get_their_vectors_in_batches(tmp_path: Path, embedder: Counting, cache: VectorCache) -> None:
    db = an_index(tmp_path, embedder, a_file("a.py", *(f"def f{number}()" for number in range(100))))
    assert counts(db).pending == 100
    fill_vectors(db, embedder, cache, never)
    assert (counts(db).pending, len(vectors_of(db)), len(embedder.texts)) == (0, 100, 100)
    fill_vectors(db, embedder, cache, never)
    assert len(embedder.texts) == 100


def test_what_was_done_before_it_is_stopped_stays(tmp_path: Path, embedder: Counting, cache: VectorCache) -> None:
    db = an_index(tmp_path, embedder, a_file("a.py", *(f"def f{number}()" for number in range(100))))
    fill_vectors(db, embedder, cache, lambda: bool(embedder.texts))
    left = counts(db).pending
    assert 0 < left < 100
    assert len(vectors_of(db)) == 100 - left
    fill_vectors(db, embedder, cache, never)
    assert (counts(db).pending, len(embedder.texts)) == (0, 100)


def test_known_texts_are_not_embedded_again(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, embedder: Counting, cache: VectorCache
) -> None:
    """Here in another worktree; a branch that is checked out again and a rename that is undone are the same."""
    db = an_index(tmp_path, embedder, a_file("a.py", "one", "two"), a_file("b.py", "one"))
    fill_vectors(db, embedder, cache, never)
    # The path is a part of what is embedded.
    assert len(embedder.texts) == 3
    other = an_index(tmp_path_factory.mktemp("worktree"), embedder, a_file("a.py", "one", "three", "two", "one"))
    fill_vectors(other, embedder, cache, never, compute=False)
    assert (counts(other).pending, len(embedder.texts)) == (1, 3)
    fill_vectors(other, embedder, cache, never)
    assert (counts(other).pending, len(embedder.texts)) == (0, 4)
    assert vectors_of(other)["two"] == vectors_of(db)["two"]


def test_another_embedder_of_the_same_size_begins_anew(tmp_path: Path, embedder: Counting, cache: VectorCache) -> None:
    db = an_index(tmp_path, embedder, a_file("a.py", "one", "two"))
    fill_vectors(db, embedder, cache, never)
    before = vectors_of(db)
    other = Counting()
    other.version = 2
    assert IndexWriter(db, other).use_embedder() == "vectors by hashed-words/1/256, now by hashed-words/2/256"
    assert (counts(db).pending, vectors_of(db)) == (2, {})
    fill_vectors(db, other, cache, never)
    assert len(other.texts) == 2
    # Back again: nothing has to be computed.
    IndexWriter(db, embedder).use_embedder()
    fill_vectors(db, embedder, cache, never, compute=False)
    assert (vectors_of(db), len(embedder.texts)) == (before, 2)


def test_an_embedder_that_fails_leaves_what_was_done(tmp_path: Path, cache: VectorCache) -> None:
    class Failing(Counting):
        def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if self.texts:
                raise UnavailableError("it died")
            return super().embed_documents(texts)

    embedder = Failing()
    db = an_index(tmp_path, embedder, a_file("a.py", *(f"def f{number}()" for number in range(100))))
    with pytest.raises(UnavailableError):
        fill_vectors(db, embedder, cache, never)
    assert 0 < counts(db).pending < 100
    assert counts(db).pending + len(vectors_of(db)) == 100


def test_deleted_chunks_wait_no_longer(tmp_path: Path, embedder: Counting, cache: VectorCache) -> None:
    db = an_index(tmp_path, embedder, a_file("a.py", "one"), a_file("b.py", "two"))
    IndexWriter(db, embedder).delete(["a.py"])
    fill_vectors(db, embedder, cache, never)
    assert list(vectors_of(db)) == ["two"]
    assert embedder.texts == ["b.py \ntwo"]


_KILLED_AT_WORK = """
import os, signal, sys
from pathlib import Path
from kvd import paths
from kvd.recall import database
from tests.fakes.hashed_words import HashedWords
from kvd.recall.vector_cache import VectorCache
from kvd.recall.vectors import fill_vectors
class Deadly(HashedWords):
    calls = 0
    def embed_documents(self, texts):
        self.calls += 1
        if self.calls == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().embed_documents(texts)
root = Path(sys.argv[1])
db = database.open_as_it_is(paths.index_file(root), root)
with VectorCache(paths.vectors_file()) as cache:
    fill_vectors(db, Deadly(), cache, lambda: False)
"""


def test_killed_while_vectors_are_made_the_next_goes_on(tmp_path: Path, embedder: Counting, cache: VectorCache) -> None:
    an_index(tmp_path, embedder, a_file("a.py", *(f"def f{number}()" for number in range(100)))).close()
    command = [sys.executable, "-c", _KILLED_AT_WORK, str(tmp_path)]
    assert subprocess.run(command, env=os.environ | {"PYTHONPATH": os.getcwd()}).returncode == -9
    db = database.open_as_it_is(paths.index_file(tmp_path), tmp_path)
    left = counts(db).pending
    assert 0 < left < 100
    fill_vectors(db, embedder, cache, never)
    assert (counts(db).pending, len(vectors_of(db)), len(embedder.texts)) == (0, 100, left)


def test_a_word_is_enough_while_vectors_are_to_come() -> None:
    said = Candidate(path="a.py", words={"unheardof"}, bm25=9.0, coverage=1.0)
    other = Candidate(path="b.py", similarity=0.05)
    assert relevant(Gathered({1: said, 2: other}, {"unheardof": 1.0}, all_embedded=False), DEFAULT_WEIGHTS)
    # And where a file says all that is asked, whatever the vectors are.
    assert relevant(Gathered({1: said, 2: other}, {"unheardof": 1.0}, all_embedded=True), DEFAULT_WEIGHTS)


def test_a_kept_vector_of_another_length_is_made_again(tmp_path: Path, embedder: Counting, cache: VectorCache) -> None:
    cache.put({vector_key(label(embedder), "a.py \none"): b"12"})
    db = an_index(tmp_path, embedder, a_file("a.py", "one"))
    fill_vectors(db, embedder, cache, never)
    assert (counts(db).pending, embedder.texts) == (0, ["a.py \none"])


# The cache


def keys(*names: str) -> list[bytes]:
    return [vector_key("e/1/256", name) for name in names]


def test_the_cache_is_private_and_content_addressed(cache: VectorCache) -> None:
    one, two = keys("one", "two")
    cache.put({one: b"1" * 256})
    assert cache.get([one, two]) == {one: b"1" * 256}
    assert vector_key("e/2/256", "one") != one
    for suffix in ("", "-wal", "-shm"):
        assert stat.S_IMODE(os.stat(f"{paths.vectors_file()}{suffix}").st_mode) == 0o600
    with VectorCache(paths.vectors_file()) as other:
        assert other.get([one]) == {one: b"1" * 256}


def test_the_cache_keeps_its_cap_and_gives_up_what_was_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    cap = 18_000_000
    used = keys("used")[0]
    day = 20_000
    monkeypatch.setattr("kvd.recall.vector_cache._today", lambda: day)
    with VectorCache(paths.vectors_file(), cap) as cache:
        cache.put({used: b"u" * 1_000})
        for number in range(20):
            day += 1
            assert cache.get([used])
            cache.put(dict.fromkeys(keys(*(f"{number} {item}" for item in range(300))), b"v" * 1000))
            assert paths.bytes_on_disk(paths.vectors_file()) < cap
        assert not cache.get(keys("0 0"))
        assert cache.get(keys("19 0"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b"garbage" * 1_000),
        lambda file: os.truncate(file, 5_000),
        lambda file: file.unlink(),
    ],
)
def test_a_damaged_cache_costs_its_vectors_only(damage: Callable[[Path], None]) -> None:
    one = keys("one")[0]
    file = paths.vectors_file()
    with VectorCache(file) as cache:
        cache.put({one: b"1" * 256})
    damage(file)
    for _ in range(2):
        with VectorCache(file) as cache:
            assert cache.get([one]) == {}
    with VectorCache(file) as cache:
        cache.put({one: b"2" * 256})
        assert cache.get([one]) == {one: b"2" * 256}


@pytest.mark.parametrize("vector", [b"\xa5" * 256, bytes(256), b"\x08" * 255, "x" * 256, 256])
def test_damaged_vectors_are_made_again(tmp_path: Path, embedder: Counting, cache: VectorCache, vector: object) -> None:
    right = vectors_of(filled(an_index(tmp_path / "1", embedder, a_file("a.py", "one", "two")), embedder, cache))
    db = apsw.Connection(str(paths.vectors_file()))
    db.execute("CREATE TABLE spoilt (key BLOB PRIMARY KEY, day, vector) WITHOUT ROWID")
    db.execute("INSERT INTO spoilt SELECT key, day, ? FROM vectors", (vector,))
    db.execute("DROP TABLE vectors")
    db.execute("ALTER TABLE spoilt RENAME TO vectors")
    db.close()
    embedder.texts.clear()
    for _ in range(2):
        again = filled(an_index(tmp_path / "2", embedder, a_file("a.py", "one", "two")), embedder, cache)
        assert vectors_of(again) == right
        assert len(embedder.texts) == 2


def test_a_cache_that_can_not_be_used_is_done_without(tmp_path: Path, embedder: Counting) -> None:
    db = apsw.Connection(str(paths.vectors_file()))
    db.execute("PRAGMA user_version = 99")
    db.close()
    (tmp_path / "folder").mkdir()
    index = an_index(tmp_path, embedder, a_file("a.py", "one"))
    for place in (paths.vectors_file(), tmp_path / "folder", tmp_path / "missing" / "vectors.db"):
        with VectorCache(place) as cache:
            cache.put(dict.fromkeys(keys("one"), b"1"))
            assert cache.get(keys("one")) == {}
            fill_vectors(index, embedder, cache, never)
    assert counts(index).pending == 0
    db = apsw.Connection(str(paths.vectors_file()))
    assert db.pragma("user_version") == 99
    db.close()


_KILLED = """
import os, signal, sys
from pathlib import Path
from kvd import paths
from kvd.recall.vector_cache import VectorCache, vector_key
with VectorCache(paths.vectors_file()) as cache:
    cache.put({vector_key("e/1/256", "one"): b"1" * 256})
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_put_survives_a_kill() -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED], env=os.environ | {"PYTHONPATH": os.getcwd()})
    assert done.returncode == -9
    with VectorCache(paths.vectors_file()) as cache:
        assert cache.get(keys("one"))
