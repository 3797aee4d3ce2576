"""Comments and docstrings of a parsed file: where they are, what they describe, what they say."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from kvd.recall.words import query_words
from kvd.source.syntax import Definition

if TYPE_CHECKING:
    from tree_sitter import Node, Query, Tree

MIN_WORDS, MAX_CHARS = 3, 240
_BETWEEN = 160
"""Bytes of decorators, modifiers and the like between a comment and what it describes."""

_DOCSTRINGS = {
    "python": "(module . (string) @doc) (block . (string) @doc)",
    "elixir": "(unary_operator operand: (call (arguments (string)))) @doc",
}


@dataclass(frozen=True, slots=True)
class Doc:
    """`start` and `end` are bytes; `about` is what it describes, None for a remark within code."""

    start: int
    end: int
    text: str
    about: Definition | None


@cache
def _query(language: str) -> Query | None:
    from tree_sitter import Query
    from tree_sitter_language_pack import get_language

    grammar = get_language(language)
    kinds = {
        kind
        for number in range(grammar.node_kind_count)
        if grammar.node_kind_is_named(number)
        and grammar.node_kind_is_visible(number)
        and (kind := grammar.node_kind_for_id(number))
        and re.search(r"comment|^haddock$|^pod$", kind)
    }
    source = "".join(f"({kind}) @doc\n" for kind in sorted(kinds)) + _DOCSTRINGS.get(language, "")
    return Query(grammar, source) if source else None


def docs(language: str, tree: Tree, source: bytes, found: list[Definition]) -> list[Doc]:
    """All that says something, in order; comments that follow each other line by line are one."""
    query = _query(language)
    if query is None:
        return []
    from tree_sitter import QueryCursor

    nodes = QueryCursor(query).captures(tree.root_node).get("doc", [])
    groups = _groups(sorted(nodes, key=lambda node: node.start_byte), source)
    starts = [item.start for item in found]
    result = []
    for start, end, string in groups:
        text = plain(source[start:end].decode("utf-8", "replace"))
        if text:
            about = _within(found, start, end) if string else _after(found, starts, source, end)
            result.append(Doc(start, end, text, about))
    return result


def _groups(nodes: list[Node], source: bytes) -> list[tuple[int, int, bool]]:
    groups: list[tuple[int, int, bool]] = []
    for node in nodes:
        string = "comment" not in node.type
        start, end = node.start_byte, node.end_byte
        if groups and start < groups[-1][1]:
            continue
        gap = source[groups[-1][1] : start] if groups else b"x"
        if groups and not string and not groups[-1][2] and not gap.strip() and gap.count(b"\n") <= 1:
            groups[-1] = (groups[-1][0], end, False)
        else:
            groups.append((start, end, string))
    return groups


def _within(found: list[Definition], start: int, end: int) -> Definition | None:
    around = [item for item in found if item.start < start and end <= item.end]
    return max(around, key=lambda item: item.start) if around else None


def _after(found: list[Definition], starts: list[int], source: bytes, end: int) -> Definition | None:
    place = bisect_left(starts, end)
    if place >= len(found) or found[place].start - end > _BETWEEN:
        return None
    between = source[end : found[place].start]
    if b"\n\n" in between.replace(b" ", b"") or b";" in between or b"}" in between:
        return None
    return found[place]


_MARKS = re.compile(
    r"^[ \t]*(?:/\*+!?|\*+/|\*(?!\w)|///?!?|--+\[*=*\[?|#+'?!?|;+|%+|\{-\s*\||-\}|\|)?[ \t]?(?:\^|\|)?", re.M
)
_NOISE = re.compile(
    r"copyright|licen[sc]e|SPDX|todo|fixme|xxx|eslint|noqa|pragma|nolint|@ts-|generated|clang-format"
    r"|pylint|type: ignore|rubocop|deprecated|vim:|-\*-|https?://\S+$|istanbul|jshint|prettier",
    re.IGNORECASE,
)
_STOP = re.compile(
    r"\n[ \t]*(?:[@\\:](?:param|return|throws|arg|type|see|since|author|brief$|example|raise|rtype|deprecated"
    r"|private|api)|Args:|Arguments:|Parameters\b|Returns?:|Raises:|Examples?\b|Usage:|Note:|>>>|```"
    r"|#+ |\.\. |={3,}|-{3,}|\* |- )"
)
_MARKUP = re.compile(r"\{@\w+ ([^}]*)\}|</?[a-zA-Z][^>]*>|[@\\](?:brief|internal|summary|short)\b|:\w+:`~?([^`]*)`")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")


def plain(comment: str) -> str:
    """The first sentences of a comment, up to `MAX_CHARS`; "" where it says too little or is no description."""
    text = re.sub(r"^[rRuUbBfF]{0,2}(?:\"\"\"|'''|\"|')|(?:\"\"\"|'''|\"|')$", "", comment.strip())
    text = "\n".join(_MARKS.sub("", line).rstrip() for line in text.split("\n")).replace("*/", "").strip()
    text = _STOP.split("\n" + text, maxsplit=1)[0].strip()
    text = re.split(r"\n\s*\n", text, maxsplit=1)[0]
    if _NOISE.search(text):
        return ""
    text = _MARKUP.sub(lambda match: match.group(1) or match.group(2) or " ", text)
    text = " ".join(text.replace("`", " ").split())
    return _first_sentences(text) if _says_something(text) else ""


def _first_sentences(text: str) -> str:
    taken = ""
    for sentence in _SENTENCE.split(text):
        if taken and len(taken) + len(sentence) > MAX_CHARS:
            break
        taken = f"{taken} {sentence}".strip()
    return taken[: 2 * MAX_CHARS]


def _says_something(text: str) -> bool:
    letters = sum(letter.isalpha() or letter == " " for letter in text)
    return letters >= 0.75 * len(text) and len(query_words(text)) >= MIN_WORDS and len(text.split()) >= MIN_WORDS
