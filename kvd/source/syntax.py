"""Parsing with tree-sitter, in bounded time, and the definitions that a parse finds."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from kvd.source.languages import DefinitionKinds, definition_kinds

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Parser, Query, Tree

MAX_PARSED_BYTES = 2_000_000
MAX_PARSE_S = 3.0
_READ_SIZE = 8_192
_MAX_NAME = 120
_MAX_DEFINITIONS = 20_000
_SCOPE_LINES = 3
_FLAT_SECTIONS = {"rst", "dockerfile"}
"""Here the node of a section, or of a build's stage, is its title alone; it goes on to the next one."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A named definition; bytes are offsets into the text, `path` holds the names around it and its own."""

    start: int
    end: int
    name: str
    path: tuple[str, ...]
    minor: bool


@dataclass(frozen=True, slots=True)
class _Grammar:
    language: Language
    parser: Parser
    kinds: DefinitionKinds
    query: Query | None


@cache
def _grammar(name: str) -> _Grammar | None:
    # Imported here: the grammars' package costs a tenth of a second that an unchanged tree need not pay.
    from tree_sitter import Parser, Query
    from tree_sitter_language_pack import get_language

    try:
        language = get_language(name)
    except (LookupError, ImportError, AttributeError):
        return None
    named = {
        language.node_kind_for_id(number)
        for number in range(language.node_kind_count)
        if language.node_kind_is_named(number) and language.node_kind_is_visible(number)
    }
    kinds = definition_kinds(name, tuple(sorted(kind for kind in named if kind)))
    query = Query(language, kinds.query) if kinds.query.strip() else None
    return _Grammar(language, Parser(language), kinds, query)


def definition_node_kinds(language: str) -> frozenset[str]:
    """Node kinds of the language that are kept whole where they fit."""
    grammar = _grammar(language)
    return grammar.kinds.kinds if grammar else frozenset()


def parse(language: str, source: bytes) -> Tree | None:
    """The tree of `source` (UTF-8); None without a grammar, or where parsing would take too long."""
    grammar = _grammar(language) if len(source) <= MAX_PARSED_BYTES else None
    if grammar is None:
        return None
    deadline = time.monotonic() + MAX_PARSE_S
    late = False

    def read(offset: int, _point: object) -> bytes:
        nonlocal late
        late = late or time.monotonic() > deadline
        return b"" if late else source[offset : offset + _READ_SIZE]

    grammar.parser.reset()
    tree = grammar.parser.parse(read)
    return None if late else tree


def definitions(language: str, tree: Tree, source: bytes) -> list[Definition]:
    """The named definitions in order of their start, outer ones first; at most `_MAX_DEFINITIONS`."""
    grammar = _grammar(language)
    if grammar is None or grammar.query is None:
        return []
    from tree_sitter import QueryCursor

    captured = QueryCursor(grammar.query).captures(tree.root_node)
    nodes = [(node, False) for node in captured.get("definition", []) if node != tree.root_node]
    nodes += [(node, True) for node in captured.get("minor", [])]
    nodes.sort(key=lambda item: (item[0].start_byte, -item[0].end_byte, item[1]))
    ends = [node.end_byte for node, _ in nodes]
    if language in _FLAT_SECTIONS:
        ends = [node.start_byte for node, _ in nodes[1:]] + [len(source)]
    found: list[Definition] = []
    around: list[Definition] = []
    for (node, is_minor), end in list(zip(nodes, ends, strict=True))[:_MAX_DEFINITIONS]:
        name = _name_of(node, source)
        if not name:
            continue
        start = node.start_byte
        while around and around[-1].end <= start:
            around.pop()
        outer = around[-1].path if around else ()
        same = bool(around) and (around[-1].start, around[-1].end) == (start, end)
        # A table or a wrapped function of some length is a scope as well.
        is_minor = is_minor and node.end_point[0] - node.start_point[0] < _SCOPE_LINES
        path = outer if same or (outer[-1:] == (name,) and is_minor) else (*outer, name)
        definition = Definition(start, end, name, path, is_minor)
        found.append(definition)
        if not is_minor:
            around.append(definition)
    return found


_NAME_FIELDS = (
    "name",
    "function_name",
    "function",
    "declarator",
    "declaration",
    "left",
    "path",
    "type",
    "pattern",
    "binding",
    "lhs",
    "key",
    "as",
)
_NAME_KIND = re.compile(
    r"identifier|name|^constant$|(?<!key)word$|symbol|sym_lit|^key$|_key$|^atom$|^variable$|^inline$|heading"
    r"|^bareword$|^unquoted_argument$|^selectors$|^alias$|^object_reference$|^title$|^string$|^flow_node$",
    re.IGNORECASE,
)
_HEADING_MARKS = re.compile(r"^#+ +| +#+$|^#+$")
_REFERENCE = re.compile(r"_specifier$")
_TOO_DEEP = 12
_NEAR = 8
_NAME_DEPTH = 4


def _name_of(node: Node, source: bytes) -> str:
    """The defined name, or "" where there is none (an anonymous function, a mention of a type)."""
    if _REFERENCE.search(node.type) and node.child_by_field_name("body") is None:
        return ""
    named = _name_node(node)
    if named is None:
        return ""
    text = source[named.start_byte : named.end_byte].decode("utf-8", "replace")
    name = _HEADING_MARKS.sub("", " ".join(text.split())).strip("\"'`*=: ")
    if not name or len(name) > _MAX_NAME:
        return ""
    receiver = node.child_by_field_name("receiver")
    if receiver is not None:
        words = re.findall(r"\w+", source[receiver.start_byte : receiver.end_byte].decode("utf-8", "replace"))
        name = f"{words[-1]}.{name}" if words else name
    return name


def _name_node(node: Node) -> Node | None:
    """Follow name-like fields inwards: C wraps a function's name in declarators."""
    current: Node | None = node
    for _ in range(_TOO_DEEP):
        if current is None:
            return None
        inner = next((child for field in _NAME_FIELDS if (child := current.child_by_field_name(field))), None)
        if inner is None:
            break
        current = inner
        if _NAME_KIND.search(inner.type) and inner.child_by_field_name("declarator") is None:
            return inner
    if current is None or current is not node:
        return current
    return _first_name(node)


def _identity(element: Node) -> Node | None:
    """The value of an HTML element's `id`."""
    for attribute in element.named_children[0].named_children:
        name, *value = attribute.named_children or [attribute]
        if attribute.type == "attribute" and name.text == b"id" and value:
            return value[0]
    return None


def _first_name(node: Node) -> Node | None:
    """Without fields: what looks most like a name among the first nodes within, nearer ones first."""
    if node.type == "block":
        # `resource "kind" "name" {`: the last label is the thing's own name.
        labels = [child for child in node.named_children[:4] if child.type in ("identifier", "string_lit")]
        return labels[-1] if labels else None
    if node.type == "element":
        return _identity(node)
    level = node.named_children[:_NEAR]
    if node.type in ("list_lit", "list", "call"):
        level = level[1:2]
    elif node.type in ("defun", "function_or_value_defn"):
        # The head comes first and is no field; the body's names would be nearer.
        level = level[:1]
    for _ in range(_NAME_DEPTH):
        found = next((child for child in level if _NAME_KIND.search(child.type)), None)
        if found is not None:
            return found
        level = [inner for child in level[:2] for inner in child.named_children[:_NEAR]]
    return None
