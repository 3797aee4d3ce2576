from __future__ import annotations

from time import perf_counter

import pytest

from kvd.recall.query import read_query
from kvd.recall.traces import Place, places, resemblance


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("how does it work", []),
        ("src/click/core.py", [Place("src/click/core.py")]),
        ("core.py:123", [Place("core.py", 123)]),
        ("what is in core.py, line 123?", [Place("core.py", 123)]),
        ("utils.py lines 100-120", [Place("utils.py", 100)]),
        ("https://host/o/r/blob/main/src/core.py#L30-L35", [Place("//host/o/r/blob/main/src/core.py", 30)]),
        ('File "a/b.py", line 3, in f\nFile "c.py", line 4, in g', [Place("c.py", 4), Place("a/b.py", 3)]),
        ("    at fn (/srv/app/lib/x.js:12:3)\n    at y.mjs:4:1", [Place("/srv/app/lib/x.js", 12), Place("y.mjs", 4)]),
        ("\tat com.foo.Bar.baz(Bar.java:123)", [Place("Bar.java", 123), Place("com.foo.Bar.baz")]),
        ("main.main()\n\t/go/src/app/main.go:41 +0x1d", [Place("/go/src/app/main.go", 41), Place("main.main")]),
        ("thread 'main' panicked at src/x.rs:10:5:\nindex out of bounds", [Place("src/x.rs", 10)]),
        ("#1 0x55d in foo::run (n=1) at ../src/foo.cc:88", [Place("src/foo.cc", 88)]),
        ("lib/x.rb:12:in 'call'", [Place("lib/x.rb", 12)]),
        ("#0 /www/app/Route.php(77): run()", [Place("/www/app/Route.php", 77)]),
        ("in C:\\work\\App\\Store.cs:line 9", [Place("C:/work/App/Store.cs", 9)]),
        ("src/a.go:1:2: undefined: x\nsrc/a.go:1:2: undefined: x", [Place("src/a.go", 1)]),
    ],
)
def test_places(text: str, expected: list[Place]) -> None:
    assert places(text) == expected


@pytest.mark.parametrize(
    ("named", "path", "same"),
    [
        ("core.py", "src/click/core.py", 1),
        ("src/click/core.py", "src/click/core.py", 3),
        ("/site-packages/click/core.py", "src/click/core.py", 2),
        ("/other/core.py", "src/click/core.py", 0),
        ("/home/me/core.py", "core.py", 1),
        ("score.py", "core.py", 0),
    ],
)
def test_resemblance(named: str, path: str, same: int) -> None:
    assert resemblance(named, path) == same


def test_what_a_query_says() -> None:
    query = read_query("TypeError: Cannot read properties of undefined (reading 'length') in `parse args`")
    assert "Cannot read properties of undefined" in query.message
    assert query.quoted == ("parse args",)
    assert query.symbol == ""
    assert read_query(" foo::bar() ").symbol == "foo::bar"
    assert read_query("parse args").symbol == ""


@pytest.mark.parametrize("piece", ["a", "a.", "a/", "a.a:", "Error: ", "'a ", "a\n", 'File "', "::", "(1)", "é.é"])
def test_long_queries_are_read_quickly(piece: str) -> None:
    text = piece * (20_000 // len(piece))
    started = perf_counter()
    read_query(text)
    assert perf_counter() - started < 2
