"""What a query says: words, names, quoted text, files and lines. Any text is one; it has no syntax."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from kvd.recall.stems import query_terms
from kvd.recall.traces import Place, places
from kvd.recall.words import identifiers

_NAME = re.compile(r"[^\W\d]\w*[?!]?(?:(?:\.|::|#|->)[^\W\d]\w*[?!]?)*")
_QUOTED = re.compile(r"\"([^\"\n]{4,300})\"|`([^`\n]{4,300})`|(?<!\w)'([^'\n]{4,300})'(?!\w)|“([^”\n]{4,300})”")
_ERROR = re.compile(
    r"^.*?\b(?:[\w.:]*(?:Error|Exception|Warning)|error|panic|fatal|panicked)\b[^:\n]*:[ \t]+(.+)$", re.M
)
_SAID_BY_CODE = re.compile(r"[^\"'`<>{}\[\]()%:\d]+")
_MOST_TEXTS = 8
_LONGEST_LINE = 400
"""Of an error message, in characters."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query's parts.

    - `terms`: distinct words as they are indexed
    - `names`: what is written like a name in code, in lower case
    - `symbol`: the query itself where it is one name and nothing else, else ""
    - `quoted`: what stands between quotation marks and is no single word
    - `message`: pieces of an error message, without what a program fills in
    - `places`: files and lines, what failed first
    """

    text: str
    terms: tuple[str, ...]
    names: tuple[str, ...]
    symbol: str
    quoted: tuple[str, ...]
    message: tuple[str, ...]
    places: tuple[Place, ...]


def read_query(text: str) -> Query:
    """Take a query apart."""
    bare = text.strip().removesuffix("()")
    quoted = [piece.strip() for found in _QUOTED.findall(text) for piece in found if not _one_word(piece)]
    return Query(
        text=text,
        terms=tuple(query_terms(text)),
        names=tuple(identifiers(text)),
        symbol=bare if _NAME.fullmatch(bare) else "",
        quoted=tuple(dict.fromkeys(quoted))[:_MOST_TEXTS],
        message=tuple(dict.fromkeys(_message(text)))[:_MOST_TEXTS],
        places=tuple(places(text)),
    )


def _one_word(piece: str) -> bool:
    return not piece.strip() or bool(re.fullmatch(r"\s*\w+\s*", piece))


def _message(text: str) -> list[str]:
    """What source code may say literally of the error messages in a text: runs of two words or more."""
    lines = "\n".join(line[:_LONGEST_LINE] for line in text.splitlines())
    pieces = [piece.strip(" .,;") for found in _ERROR.findall(lines) for piece in _SAID_BY_CODE.findall(found)]
    return [piece for piece in pieces if len(piece) >= 8 and len(piece.split()) >= 2]


@lru_cache(maxsize=16_384)
def last_part(name: str) -> str:
    """`Session.close`, `Session::close`, `Session#close` and `session->close` to `close`."""
    return re.split(r"\.|::|#|->", name)[-1]
