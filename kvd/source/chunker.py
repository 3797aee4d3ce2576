"""Texts to chunks: whole functions and classes where they fit.

Sizes are bytes of UTF-8, so chunks don't depend on any model. Neighbours that are small are merged up to
`TARGET_BYTES`; a definition stays whole up to `MAX_BYTES`; what is larger is split at its child nodes, else at line
ends, else within a line. No chunk is larger than `MAX_BYTES`.

Chunks of one file don't overlap and cover all of it except blank lines at their borders. Nothing here recurses, so
no depth of nesting is too deep.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from kvd.source import languages, syntax
from kvd.source.languages import WRAPPERS
from kvd.source.syntax import Definition
from kvd.types import Chunk

if TYPE_CHECKING:
    from tree_sitter import Node

TARGET_BYTES = 2_000
MAX_BYTES = 3_200
_TINY_BYTES = 48
_SMALL_BYTES = 400

CHUNKER_VERSION = 2
"""Raise it when the same text would be cut or judged otherwise: indexes are then made anew."""


@dataclass(frozen=True, slots=True)
class SourceChunk:
    """A chunk and the names of the definitions that begin in it."""

    chunk: Chunk
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Unit:
    """A piece that is not split further. `parent` numbers the node that it is a part of."""

    start: int
    end: int
    parent: int
    closing: bool = False
    """Punctuation that belongs to what stands before it."""


def chunk_text(path: str, text: str, language: str, by_lines: bool = False) -> list[SourceChunk]:
    """The chunks of a decoded text (line ends are `\\n`), in order; none for a blank text.

    `by_lines` leaves the parser out, as for a language without a grammar.
    """
    source = text.encode("utf-8")
    lines = _line_starts(source)
    tree = None if by_lines or not languages.has_grammar(language) else syntax.parse(language, source)
    if tree is None:
        units: Iterable[_Unit] = _split_lines(source, 0, len(source), 0)
        found: list[Definition] = []
    else:
        kinds = syntax.definition_node_kinds(language)
        units = _units(tree.root_node, source, kinds)
        found = syntax.definitions(language, tree, source)
    spans = [span for start, end in _merge(units, source) if (span := _trim(source, start, end))]
    scopes = _scopes(spans, found)
    return [
        SourceChunk(
            Chunk(
                path=path,
                language=language,
                scope=scope,
                start_line=bisect_right(lines, start),
                end_line=bisect_right(lines, end - 1),
                start_byte=start,
                end_byte=end,
                text=source[start:end].decode("utf-8"),
            ),
            symbols,
        )
        for (start, end), (scope, symbols) in zip(spans, scopes, strict=True)
    ]


def _line_starts(source: bytes) -> list[int]:
    starts = [0]
    position = source.find(b"\n")
    while position >= 0:
        starts.append(position + 1)
        position = source.find(b"\n", position + 1)
    return starts


def _units(root: Node, source: bytes, kinds: frozenset[str]) -> Iterable[_Unit]:
    """Descend into nodes that are too large; yields units in order that touch each other and cover everything."""
    stack: list[tuple[int, int, Node, int]] = [(0, len(source), root, 0)]
    numbers = 0
    while stack:
        start, end, node, parent = stack.pop()
        if end - start <= TARGET_BYTES or (end - start <= MAX_BYTES and _stays_whole(node, kinds)):
            yield _Unit(start, end, parent, not node.is_named)
            continue
        children = node.children
        if not children:
            yield from _split_lines(source, start, end, parent)
            continue
        numbers += 1
        borders = [start, *_borders(children, source, start), end]
        # From the last to the first: the stack gives them back in order.
        for child, (low, high) in zip(reversed(children), reversed(list(pairwise(borders))), strict=True):
            if high > low:
                stack.append((low, high, child, numbers))


def _stays_whole(node: Node, kinds: frozenset[str]) -> bool:
    if node.type in kinds:
        # A whole file is a "module" or "program" to some grammars, and no definition.
        return node.parent is not None
    return node.type in WRAPPERS and any(child.type in kinds for child in node.named_children)


def _borders(children: list[Node], source: bytes, start: int) -> Iterable[int]:
    """Where each child but the first begins: at its line's start, or at the comment that belongs to it."""
    previous_end = max(start, children[0].end_byte)
    glued: int | None = children[0].start_byte if _dresses(children[0]) else None
    border = start
    for before, child in pairwise(children):
        begin = _line_begin(source, child.start_byte, previous_end)
        if glued is not None and _touches(source, before, child):
            # The comment before belongs to this child: the comment's own span stays empty.
            border = max(border, start)
        elif _dresses(child) and source.find(b"\n", before.end_byte, child.start_byte) < 0 and before.end_byte:
            # A comment at the end of a line belongs to that line.
            border = max(border, child.end_byte)
            previous_end = max(previous_end, child.end_byte)
            glued = None
            yield border
            continue
        else:
            border = max(border, begin)
        yield border
        glued = border if _dresses(child) else None
        previous_end = max(previous_end, child.end_byte)


def _dresses(node: Node) -> bool:
    kind = node.type
    return "comment" in kind or kind in ("decorator", "attribute_item", "attribute", "annotation", "attribute_list")


def _touches(source: bytes, comment: Node, child: Node) -> bool:
    """Whether no blank line separates them."""
    end = comment.end_byte
    if end and source[end - 1 : end] == b"\n":
        end -= 1
    return source.count(b"\n", end, child.start_byte) <= 1


def _line_begin(source: bytes, position: int, floor: int) -> int:
    """The start of the line if only blanks stand between it and `position`, never before `floor`."""
    begin = max(source.rfind(b"\n", floor, position) + 1, floor)
    return begin if not source[begin:position].strip() else position


def _split_lines(source: bytes, start: int, end: int, parent: int) -> Iterable[_Unit]:
    """Windows of whole lines up to the target, ending at a blank line where one is near; long lines are cut."""
    while end - start > TARGET_BYTES:
        cut = _cut(source, start, start + TARGET_BYTES)
        yield _Unit(start, cut, parent)
        start = cut
    if end > start:
        yield _Unit(start, end, parent)


def _cut(source: bytes, start: int, limit: int) -> int:
    """A position in (start, limit] to cut at: after a blank line, a line, a word, else between characters."""
    blank = source.rfind(b"\n\n", start + (limit - start) // 2, limit)
    if blank >= 0:
        return blank + 2
    line = source.rfind(b"\n", start, limit)
    if line >= 0:
        return line + 1
    for separator in (b" ", b",", b";"):
        found = source.rfind(separator, start + (limit - start) // 2, limit)
        if found >= 0:
            return found + 1
    while limit > start + 1 and source[limit] & 0xC0 == 0x80:
        limit -= 1
    return limit


def _merge(units: Iterable[_Unit], source: bytes) -> Iterable[tuple[int, int]]:
    """Join neighbours up to the target; spans touch each other, none is larger than `MAX_BYTES`."""
    current: _Unit | None = None
    for unit in units:
        if current is None:
            current = unit
        elif _belongs(current, unit, source):
            parent = unit.parent if current.end - current.start <= _TINY_BYTES else current.parent
            current = _Unit(current.start, unit.end, parent)
        else:
            yield from _bounded(source, current)
            current = unit
    if current is not None:
        yield from _bounded(source, current)


def _belongs(current: _Unit, unit: _Unit, source: bytes) -> bool:
    size = unit.end - current.start
    if size <= TARGET_BYTES:
        near = unit.parent == current.parent
        return near or min(unit.end - unit.start, current.end - current.start) <= _SMALL_BYTES
    if size > MAX_BYTES:
        return False
    tiny = unit.end - unit.start <= _TINY_BYTES
    return (unit.closing and tiny) or (unit.start > 0 and source[unit.start - 1] != 0x0A)


def _bounded(source: bytes, unit: _Unit) -> Iterable[tuple[int, int]]:
    if unit.end - unit.start <= MAX_BYTES:
        yield unit.start, unit.end
        return
    for part in _split_lines(source, unit.start, unit.end, unit.parent):
        yield part.start, part.end


def _trim(source: bytes, start: int, end: int) -> tuple[int, int] | None:
    """Without blank lines at the start and blanks at the end; the first line keeps its indentation."""
    text = source[start:end]
    kept = len(text.rstrip())
    if not kept:
        return None
    lead = len(text) - len(text.lstrip())
    return start + text.rfind(b"\n", 0, lead) + 1, start + kept


def _scopes(spans: list[tuple[int, int]], found: list[Definition]) -> Iterable[tuple[str, tuple[str, ...]]]:
    """For each span its scope path and the names that begin in it."""
    position = 0
    around: list[Definition] = []
    for start, end in spans:
        while around and around[-1].end <= start:
            around.pop()
        beginning: list[Definition] = []
        while position < len(found) and found[position].start < end:
            beginning.append(found[position])
            position += 1
        outer = next((item for item in reversed(around) if item.end > start), None)
        scope = _scope(outer, beginning, end - start)
        yield scope, tuple(dict.fromkeys(item.name for item in beginning))
        around = [item for item in around if item.end > end]
        around += [item for item in beginning if item.end > end and not item.minor]


def _scope(outer: Definition | None, beginning: list[Definition], size: int) -> str:
    base = outer.path if outer else ()
    top: list[Definition] = []
    for item in beginning:
        if not item.minor and (not top or item.start >= top[-1].end):
            top.append(item)
    covered = sum(min(item.end - item.start, size) for item in top)
    if not top or (base and covered * 2 < size):
        return ".".join(base)
    paths = [item.path for item in top]
    common = paths[0]
    for path in paths[1:]:
        same = [a for a, b in zip(common, path, strict=False) if a == b]
        common = common[: len(same)] if common[: len(same)] == tuple(same) else ()
    if common:
        return ".".join(common)
    names = list(dict.fromkeys(".".join(path) for path in paths))
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
