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
from kvd.recall.only import Only
from kvd.recall.places import path_factor
from kvd.recall.query import read_query
from kvd.recall.rank import MAX_QUERY, search
from kvd.recall.stems import query_terms
from kvd.recall.vector_cache import VectorCache
from kvd.recall.vectors import fill_vectors
from kvd.types import Chunk

Items = list[tuple[str, tuple[str, ...], str]]
NO_TIMES: Mapping[str, int] = {}

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


def build(
    root: Path, files: Mapping[str, Sequence[tuple[str, tuple[str, ...], str]]], mtimes: Mapping[str, int] = NO_TIMES
) -> None:
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
            language = "markdown" if path.endswith(".md") else "python"
            new.append(NewFile(path, 1, mtimes.get(path, 1), 1, b"h", language, "", False, chunks))
        writer.put(new)
        writer.finish()
        with VectorCache(paths.vectors_file()) as cache:
            fill_vectors(db, default_embedder(), cache, lambda: False)
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
        ("socekt", "src/session.py"),
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
        "who is the CEO's car dealer",
        "how does PostgreSQL vacuum work",
        "What is the capital of France?",
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
        "close session multi-agent",
        "foo::bar close session",
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
    query, embedder = read_query("session"), default_embedder()
    assert any(item.similarity for item in gather(db, query, embedder).candidates.values())
    database.write_meta(db, embedder="other/1/256")
    assert not any(
        item.similarity for item in gather(db, read_query("session"), default_embedder()).candidates.values()
    )
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
        ("tests/test_a.py", "x", 0.4),
        ("a_test.go", "x", 0.4),
        ("src/FooTest.java", "x", 0.4),
        ("tests/test_a.py", "test", 0.8),
        ("src/contest.py", "x", 1.0),
        ("src/latest/a.py", "x", 1.0),
        ("docs/a.md", "x", 0.6),
        ("README.md", "document", 0.8),
        ("dist/a.js", "x", 0.6),
        ("src/a.min.js", "x", 0.6),
        ("src/dist.py", "x", 1.0),
        ("examples/test_x.py", "x", 0.35),
        ("packages/bench/a.ts", "x", 0.4),
        ("v3/benchmarks/a.ts", "x", 0.4),
        ("axum/benches/a.rs", "x", 0.4),
        ("src/ParseBenchmark.java", "x", 0.4),
        ("db/db_bench.cc", "x", 0.4),
        ("src/a.bench.ts", "x", 0.4),
        ("v3/benchmarks/a.ts", "benchmark", 0.8),
        ("src/workbench.ts", "x", 1.0),
        ("src/benchutil.ts", "x", 1.0),
    ],
)
def test_path_factor(path: str, query: str, factor: float) -> None:
    assert path_factor(path, {query}) == pytest.approx(factor)


def test_the_definition_of_a_name_is_first(tmp_path: Path) -> None:
    files: dict[str, Items] = {
        "a.py": [("Routing", ("Routing",), "class Routing:\n    routers = routing(Router, Router, Router, routes)")],
        "b.py": [("RouterGroup.router", ("RouterGroup", "router"), "class RouterGroup:\n    def router(self): pass")],
        "c.py": [("Router", ("Router",), "class Router:\n" + "    pass\n" * 40)],
        "d.py": [("Session.close", ("close",), "    def close(self): pass"), ("Pool", ("Pool",), "class Pool: pass")],
        "e.py": [("Pool.close", ("close",), "    def close(self): close(close, session, session)")],
    }
    build(tmp_path, files)
    assert found(tmp_path, "Router")[0] == "c.py"
    for query in ("Session.close", "Session::close", "Session#close", "Session->close", "Session.close()"):
        assert search(tmp_path, query, 5)[0].chunk.scope == "Session.close"
    assert found(tmp_path, "Pool.close")[0] == "e.py"


@pytest.mark.parametrize(
    ("query", "path", "line"),
    [
        ("src/session.py", "src/session.py", 1),
        ("what is in src/session.py about a pool", "src/session.py", 11),
        ("session.py:13", "src/session.py", 11),
        ("src/session.py:3", "src/session.py", 1),
        ("/home/me/project/src/session.py:14:2: error", "src/session.py", 11),
        ("error in ./src/session.py on line 12", "src/session.py", 11),
        ("src\\session.py(12)", "src/session.py", 11),
        ("src/session.py:9999 is beyond the end", "src/session.py", 11),
    ],
)
def test_paths_and_lines_lead(root: Path, query: str, path: str, line: int) -> None:
    chunk = search(root, query, 5)[0].chunk
    assert (chunk.path, chunk.start_line) == (path, line)


def test_the_innermost_frame_of_a_trace_leads(root: Path) -> None:
    python = (
        "Traceback (most recent call last):\n"
        '  File "/app/src/router.py", line 3, in match\n    route.open()\n'
        '  File "/usr/lib/python3.11/socket.py", line 99, in connect\n'
        '  File "/app/src/session.py", line 12, in close\n    self.pool.release(self)\n'
        "AttributeError: 'NoneType' object has no attribute 'release'\n"
    )
    assert found(root, python)[:2] == ["src/session.py", "src/router.py"]
    others = "Error: it failed\n    at close (/app/src/session.py:12:3)\n    at match (/app/src/router.py:3:9)\n"
    assert found(root, others)[:2] == ["src/session.py", "src/router.py"]


def test_quoted_text_is_found_to_the_letter(tmp_path: Path) -> None:
    build(
        tmp_path,
        {
            "src/near.py": [("near", ("near",), "def near(): no such such option, such an option such")],
            "src/says.py": [("f", ("f",), "def f():\n    raise E('No such option: ' + name)\n" + "    x = 1\n" * 60)],
        },
    )
    assert found(tmp_path, "where does 'no such option' come from")[0] == "src/says.py"
    assert found(tmp_path, "UsageError: No such option: --colour")[0] == "src/says.py"
    assert found(tmp_path, "`No such option: `")[0] == "src/says.py"


def test_only_what_the_filters_leave_is_found(root: Path) -> None:
    def paths_of(query: str, *patterns: str, languages: tuple[str, ...] = ()) -> set[str]:
        return {hit.chunk.path for hit in search(root, query, 20, only=Only(patterns, languages))}

    assert {"src/session.py", "tests/test_session.py", "docs/session.md"} <= paths_of("close a session")
    assert paths_of("close a session", "tests/**") == {"tests/test_session.py"}
    assert paths_of("close a session", "*.md", "tests") == {"docs/session.md", "tests/test_session.py"}
    assert not {"tests/test_session.py", "docs/session.md"} & paths_of("close a session", "!tests/**", "!docs")
    assert paths_of("close a session", languages=("markdown",)) == {"docs/session.md"}
    assert paths_of("close a session", "src/**", languages=("markdown",)) == set()
    assert "src/session.py" not in paths_of("src/session.py:12", "tests/**")
    with pytest.raises(UsageError, match="no pattern of paths"):
        paths_of("close a session", "!")


@pytest.mark.parametrize(
    ("only", "told"),
    [
        (Only(("src/**",)), []),
        (Only(("source/**",)), ["no indexed file matches source/**; there is src/, tests/, docs/"]),
        (Only((), ("go",)), ["no indexed file is in go; there is python, markdown"]),
        (
            Only(("src",), ("go", "c")),
            ["no indexed file matches src and is in go or c; there is python, markdown"],
        ),
    ],
)
def test_filters_that_leave_nothing_are_told_of(root: Path, only: Only, told: list[str]) -> None:
    heard: list[str] = []
    assert bool(search(root, "close a session", 5, only=only, tell=heard.append)) == (told == [])
    assert heard == told


def test_of_equals_the_one_edited_last_is_first(tmp_path: Path) -> None:
    # Names that are numbers weigh next to nothing in a vector.
    day = 86_400_000_000_000
    same: Items = [("drop", ("drop",), "def drop(): cache invalidation")]
    build(
        tmp_path,
        {"90211.py": same, "90212.py": same, "90213.py": same},
        {"90211.py": day, "90212.py": 9 * day, "90213.py": 9 * day},
    )
    assert found(tmp_path, "cache invalidation") == ["90212.py", "90213.py", "90211.py"]
    better: Items = [("invalidate", ("invalidate",), "def invalidate(): cache invalidation cache")]
    build(tmp_path, {"90211.py": better})
    assert found(tmp_path, "cache invalidation")[0] == "90211.py"


@pytest.mark.parametrize(
    "words",
    [
        ("suggest", "suggestions"),
        ("validate", "validation", "validator"),
        ("serialize", "serialization", "serializer"),
        ("allocate", "allocator", "allocation"),
        ("manage", "management", "manager"),
        ("read", "readable"),
        ("recurse", "recursion", "recursive"),
    ],
)
def test_derived_words_are_looked_up_as_one(words: tuple[str, ...]) -> None:
    assert len({query_terms(word)[0] for word in words}) == 1


def test_words_that_only_look_derived_stay() -> None:
    assert query_terms("format statement argument state") == ["format", "statement", "argument", "stat"]


def test_without_vectors_words_alone_tell_what_is_relevant(root: Path) -> None:
    db, _ = database.open_for_writing(paths.index_file(root), root, "1")
    database.write_meta(db, embedder="other/1/256")
    db.close()
    assert found(root, "how is a session closed?")[0] == "src/session.py"
    assert found(root, "recipe for pancakes with maple syrup") == []
