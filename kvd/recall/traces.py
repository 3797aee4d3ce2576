"""What a pasted text says of files: paths, and the frames of stack traces and compilers' messages."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_PLACES = 12
"""The innermost frames of a longer trace are looked up."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file, as it is written, and a line of it (from 1; 0 where none is said)."""

    path: str
    line: int = 0


# From where a word begins only, so that a long one costs no more than its length.
_PATH = r"(?<![\w./\\@+~-])(?:[A-Za-z]:)?[\w./\\@+~-]*[\w+-]\.[A-Za-z]\w{0,9}"
_PYTHON = re.compile(r'File "(?P<path>[^"\n]+)", line (?P<line>\d+)')
_FRAME = re.compile(
    # core.py:12, src/x.rs:10:5, (Bar.java:123), Foo.cs:line 12, file.php(123), x.php on line 12, a.py#L12, a.py line 12
    rf"(?P<path>{_PATH})(?::(?:line )?(?P<line>\d+)|\((?P<call>\d+)\)|,? (?:(?:on|at) )?lines? (?P<on>\d+)"
    r"|#L(?P<anchor>\d+))"
)
_FILE = re.compile(rf"(?P<path>{_PATH}|(?<![\w./@+~-])(?:[\w.@+-]+/)+[\w.@+-]*\w)")
_PARENT = re.compile(r"^(?:\.{1,2}[/\\])+")


def places(text: str) -> list[Place]:
    """The places that a text names, what failed first: innermost frames before those that called them.

    Python's traces end with the innermost frame; all others begin with it.
    """
    python = [Place(found["path"], int(found["line"])) for found in _PYTHON.finditer(text)]
    rest = _PYTHON.sub(" ", text)
    frames = [_place(found) for found in _FRAME.finditer(rest)]
    files = [Place(found["path"]) for found in _FILE.finditer(_FRAME.sub(" ", rest))]
    found = [*reversed(python), *frames, *files]
    return list(dict.fromkeys(Place(_clean(place.path), place.line) for place in found))


def _place(found: re.Match[str]) -> Place:
    line = found["line"] or found["call"] or found["on"] or found["anchor"]
    return Place(found["path"], min(int(line), 1 << 31))


def _clean(path: str) -> str:
    return _PARENT.sub("", path.replace("\\", "/"))


def resemblance(named: str, path: str) -> int:
    """How many last parts of a path of the repository are those that were named; 0 where it is another file.

    One that was named by its absolute path, or by that of another copy, needs its folder too.
    """
    theirs, mine = named.strip("/").split("/"), path.split("/")
    same = 0
    for one, other in zip(reversed(theirs), reversed(mine), strict=False):
        if one != other:
            break
        same += 1
    whole = same in (len(theirs), len(mine))
    return same if whole or same >= 2 else 0
