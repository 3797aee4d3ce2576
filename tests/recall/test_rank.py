from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kvd import paths
from kvd.errors import StoreError, UsageError
from kvd.recall import database
from kvd.recall.candidates import gather
from kvd.recall.embed import default_embedder
from kvd.recall.index import IndexWriter, NewFile, only_writer
from kvd.recall.places import path_factor
from kvd.recall.rank import MAX_QUERY, search
from kvd.types import Chunk

Items = list[tuple[str, tuple[str, ...], str]]

FILES: dict[str, Items] = {
    "src/session.py": [
        (
            "Session.open",
            ("Session", "open"),
            "class Session:\n    def open(self):\n        self.socket = connect(self.host)",
        ),
        (
            "Session.close",
            ("close",),
            "    def close(self):\n        self.socket.shutdown()\n        self.pool.release(self)",
        ),
    ],
    "src/pool.py": [
        (
            "ConnectionPool",
            ("ConnectionPool", "release"),
            "class ConnectionPool:\n    def release(self, session):\n        self.idle.append(session)",
        ),
    ],
    "src/router.py": [
        (
            "Router.match",
            ("Router", "match"),
            "class Router:\n    def match(self, path):\n        for route in self.routes:\n"
            "            if route.matches(path): return route",
        ),
    ],
    "src/http/cookies.py": [
        (
            "parse_cookie_header",
            ("parse_cookie_header",),
            "def parse_cookie_header(value):\n    return dict(part.split('=') for part in value.split(';'))",
        ),
    ],
    "src/authenticate.py": [
        (
            "authenticate_user",
            ("authenticate_user",),
            "def authenticate_user(name, password):\n    return verify(hash_password(password), lookup(name))",
        ),
    ],
    "tests/test_session.py": [
        (
            "test_session_close",
            ("test_session_close",),
            "def test_session_close():\n    session = Session()\n    session.close()\n"
            "    assert session.socket is None",
        ),
    ],
    "docs/session.md": [
        (
            "Sessions",
            ("Sessions",),
            "# Sessions\n\nA session is opened and must be closed: call Session.close when done.",
        )
    ],
}


def build(root: Path, files: Mapping[str, Sequence[tuple[str, tuple[str, ...], str]]]) -> None:
    file = paths.index_file(root)
    with only_writer(file, lambda: False):
        db, _ = database.open_for_writing(file, root, "1")
        writer = IndexWriter(db, default_embedder())
        writer.use_embedder()
        new = []
        for path, items in files.items():
            chunks = [
                (Chunk(path, "python", scope, 10 * n + 1, 10 * n + 4, 0, len(text), text), symbols)
                for n, (scope, symbols, text) in enumerate(items)
            ]
            new.append(NewFile(path, 1, 1, 1, b"h", "python", "", False, chunks))
        writer.put(new)
        writer.finish()
        db.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build(tmp_path, FILES)
    return tmp_path


def found(root: Path, query: str, top_k: int = 5) -> list[str]:
    return [hit.chunk.path for hit in search(root, query, top_k)]


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("how is a session closed?", "src/session.py"),
        ("Session.close", "src/session.py"),
        ("Session::close", "src/session.py"),
        ("ConnectionPool", "src/pool.py"),
        ("connection pool", "src/pool.py"),
        ("connectionpool", "src/pool.py"),
        ("where are routes matched against the path", "src/router.py"),
        ("cookie header parsing", "src/http/cookies.py"),
        ("parse_cookie_header", "src/http/cookies.py"),
        ("authentication of users", "src/authenticate.py"),
        ("athenticate", "src/authenticate.py"),
        ("test for closing a session", "tests/test_session.py"),
        ("session docs", "docs/session.md"),
    ],
)
def test_right_file_is_first(root: Path, query: str, path: str) -> None:
    assert found(root, query)[0] == path


def test_hits_carry_the_chunk(root: Path) -> None:
    hit = search(root, "Session.close", 3)[0]
    assert hit.chunk.scope == "Session.close"
    assert (hit.chunk.start_line, hit.chunk.end_line) == (11, 14)
    assert hit.chunk.text.startswith("    def close")
    scores = [item.score for item in search(root, "session", 5)]
    assert scores == sorted(scores, reverse=True)


def test_as_many_as_asked_for(root: Path) -> None:
    assert len(found(root, "session", 2)) == 2
    assert len(found(root, "session", 1)) == 1
    with pytest.raises(UsageError):
        search(root, "session", 0)


@pytest.mark.parametrize(
    "query",
    [
        "recipe for pancakes with maple syrup",
        "what is the weather in paris tomorrow",
        "who won the football championship",
        "what is this",
        "zzzzqqqq",
        "*",
        "🙂",
        "\0",
        '"',
        "- - -",
    ],
)
def test_nothing_relevant_gives_nothing(root: Path, query: str) -> None:
    assert found(root, query) == []


@pytest.mark.parametrize(
    "query",
    [
        "session multi-agent",
        "foo::bar session",
        "don't close session",
        '"--x" session',
        "session C++",
        "session*",
        "session AND OR NOT NEAR(close, 2)",
        "path:session",
        "body : session",
        "^session",
        "(session",
        'session"',
        "session\0close",
        "session 🙂",
        "{session}",
        "session close' OR 1=1; DROP TABLE chunks; --",
        "SESSION",
        "ſession session",
    ],
)
def test_query_has_no_syntax(root: Path, query: str) -> None:
    assert "src/session.py" in found(root, query)


def test_long_queries(root: Path) -> None:
    filler = " ".join(f"filler{number}" for number in range(1_200))[:9_900]
    assert len(filler) > 9_000
    search(root, filler + " session", 5)
    assert found(root, "session close " * 700)[0] == "src/session.py"
    search(root, "x" * MAX_QUERY, 5)
    with pytest.raises(UsageError):
        search(root, "x" * (MAX_QUERY + 1), 5)


@pytest.mark.parametrize("query", ["", "   ", "\n\t"])
def test_empty_query(root: Path, query: str) -> None:
    with pytest.raises(UsageError) as caught:
        search(root, query, 5)
    assert caught.value.exit_code == 2


def test_without_an_index(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        search(tmp_path, "session", 5)
    assert caught.value.hint == f"kvd index {tmp_path}"


def test_damaged_while_searching(root: Path) -> None:
    file = paths.index_file(root)
    data = bytearray(file.read_bytes())
    for page in range(3, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    file.write_bytes(bytes(data))
    with pytest.raises(StoreError) as caught:
        search(root, "session", 5)
    assert caught.value.hint == f"kvd index {root}"


def test_vectors_of_another_embedder_are_not_used(root: Path) -> None:
    db, _ = database.open_for_writing(paths.index_file(root), root, "1")
    assert any(item.similarity for item in gather(db, "session", ["session"]).candidates.values())
    database.write_meta(db, embedder="other/1/256")
    assert not any(item.similarity for item in gather(db, "session", ["session"]).candidates.values())
    db.close()
    assert found(root, "Session.close")[0] == "src/session.py"


def test_one_file_does_not_fill_the_answer(tmp_path: Path) -> None:
    many = [(f"f{n}", (f"f{n}",), f"def f{n}(): cache invalidation of entry {n}") for n in range(20)]
    one = [("drop", ("drop",), "def drop(): cache invalidation")]
    build(tmp_path, {"big.py": many, "small.py": one})
    assert "small.py" in found(tmp_path, "cache invalidation", 3)


@pytest.mark.parametrize(
    ("path", "query", "factor"),
    [
        ("src/a.py", "x", 1.0),
        ("tests/test_a.py", "x", 0.5),
        ("a_test.go", "x", 0.5),
        ("src/FooTest.java", "x", 0.5),
        ("tests/test_a.py", "test", 1.0),
        ("src/contest.py", "x", 1.0),
        ("src/latest/a.py", "x", 1.0),
        ("docs/a.md", "x", 0.7),
        ("README.md", "document", 1.0),
        ("examples/test_x.py", "x", 0.35),
    ],
)
def test_path_factor(path: str, query: str, factor: float) -> None:
    assert path_factor(path, {query}) == pytest.approx(factor)
