"""Jupyter notebooks: the cells' source, never their outputs.

A cell's text is what its `source` strings say. Its lines and bytes are those of the `.ipynb` file on disk: from the
line on which the chunk's first source string stands to the line of its last one. As notebooks are written, each
source line is one string on a line of its own, so a citation opens the file where that code line is. Where a whole
cell is one string, all of it is on one line of the file, and that line is cited.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvd.source import syntax
from kvd.source.chunker import SourceChunk, chunk_text

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True, slots=True)
class _Piece:
    """One source string: its text, and where it stands in the file (1-based line, bytes)."""

    text: str
    line: int
    start: int
    end: int


def chunk_notebook(path: str, text: str) -> list[SourceChunk] | None:
    """The chunks of all cells in order; None if the text is not a notebook."""
    source = text.encode("utf-8")
    tree = syntax.parse("json", source)
    root = tree.root_node.named_children if tree else []
    cells = _member(root[0], "cells", source) if root and root[0].type == "object" else None
    if cells is None or cells.type != "array":
        return None
    language = _language(root[0], source)
    chunks: list[SourceChunk] = []
    for cell in cells.named_children:
        if cell.type == "object":
            chunks += _chunk_cell(path, cell, language, source)
    return chunks


def _chunk_cell(path: str, cell: Node, language: str, source: bytes) -> list[SourceChunk]:
    kind = _string(_member(cell, "cell_type", source), source)
    body = _member(cell, "source", source)
    nodes = [] if body is None else [body] if body.type == "string" else body.named_children
    pieces = [
        _Piece(value.replace("\r\n", "\n").replace("\r", "\n"), node.start_point[0] + 1, node.start_byte, node.end_byte)
        for node in nodes
        if (value := _string(node, source)) is not None
    ]
    whole = "".join(piece.text for piece in pieces)
    inner = chunk_text(path, whole, language if kind == "code" else "markdown")
    return [_on_disk(item, pieces) for item in inner]


def _on_disk(item: SourceChunk, pieces: list[_Piece]) -> SourceChunk:
    """The same chunk with the lines and bytes of the source strings that it comes from."""
    offsets = [0]
    for piece in pieces:
        offsets.append(offsets[-1] + len(piece.text.encode("utf-8")))
    first = pieces[bisect_right(offsets, item.chunk.start_byte) - 1]
    last = pieces[min(bisect_right(offsets, item.chunk.end_byte - 1) - 1, len(pieces) - 1)]
    chunk = replace(item.chunk, start_line=first.line, end_line=last.line, start_byte=first.start, end_byte=last.end)
    return replace(item, chunk=chunk)


def _member(node: Node | None, key: str, source: bytes) -> Node | None:
    for pair in node.named_children if node is not None else []:
        if pair.type == "pair" and _string(pair.child_by_field_name("key"), source) == key:
            return pair.child_by_field_name("value")
    return None


def _string(node: Node | None, source: bytes) -> str | None:
    if node is None or node.type != "string":
        return None
    try:
        value = json.loads(source[node.start_byte : node.end_byte])
    except ValueError:
        return None
    # Half of a surrogate pair can be escaped in JSON but not encoded in UTF-8.
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else None


def _language(root: Node, source: bytes) -> str:
    metadata = _member(root, "metadata", source)
    kernel = _string(_member(_member(metadata, "kernelspec", source), "language", source), source)
    named = _string(_member(_member(metadata, "language_info", source), "name", source), source)
    found = (named or kernel or "python").lower()
    return {"ipython": "python", "c++": "cpp", "c#": "csharp", "f#": "fsharp"}.get(found, found)
