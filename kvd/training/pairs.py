"""Pairs of (what is asked, where it is) out of source files, without anyone having labelled them."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from kvd.recall.words import parts_of, query_words
from kvd.source import syntax
from kvd.source.chunker import SourceChunk, chunk_text
from kvd.source.syntax import Definition
from kvd.training.archives import sources
from kvd.training.docs import Doc, docs, plain

PER_PACKAGE = 1_500
_REMARKS, _NAMES, _WHOLE = 0.5, 0.3, 0.5
"""Which share of remarks and of names is taken; how often a doc's place is a whole chunk, not the definition alone."""
_MIN_BODY = 120
_MAX_BODY = 3_000


@dataclass(frozen=True, slots=True)
class Pair:
    """`key` is the same for pairs whose place is the same: they are no wrong answers to each other."""

    kind: str
    query: str
    path: str
    scope: str
    text: str
    key: str


class _File:
    def __init__(self, path: str, language: str, text: str) -> None:
        self.path, self.text = path, text
        self.source = text.encode("utf-8")
        self.chunks: list[SourceChunk] = chunk_text(path, text, language)
        tree = syntax.parse(language, self.source)
        self.found = syntax.definitions(language, tree, self.source) if tree else []
        self.docs = docs(language, tree, self.source, self.found) if tree else []

    def chunk_at(self, position: int) -> SourceChunk | None:
        return next((c for c in self.chunks if c.chunk.start_byte <= position < c.chunk.end_byte), None)

    def without(self, start: int, end: int, doc: Doc) -> str:
        """The text from `start` to `end` without a doc that lies in it."""
        low, high = max(start, doc.start), min(end, doc.end)
        if low >= high:
            return self.source[start:end].decode("utf-8", "replace")
        return (self.source[start:low] + self.source[high:end]).decode("utf-8", "replace")


def pairs_of(archive: Path, limit: int = PER_PACKAGE) -> list[Pair]:
    """A random choice of at most `limit` pairs of one package."""
    chance = random.Random(zlib.crc32(archive.name.encode()))
    found: list[Pair] = []
    places: defaultdict[str, list[Pair]] = defaultdict(list)
    prose: list[tuple[str, str]] = []
    for path, language, text in sources(archive):
        if language in ("markdown", "rst"):
            prose += _paragraphs(text)
            continue
        try:
            file = _File(path, language, text)
        except (ValueError, RecursionError):
            continue
        found += _of_file(file, chance)
        for item in file.found:
            chunk = file.chunk_at(item.start)
            if chunk is not None and len(item.name) > 3:
                places[item.name.rpartition(".")[2]].append(_whole("prose", "", file, chunk, chunk.chunk.text))
    found += _of_prose(prose, places, chance)
    chance.shuffle(found)
    return found[:limit]


def _of_file(file: _File, chance: random.Random) -> Iterator[Pair]:
    if file.docs and file.docs[0].about is None and file.docs[0].start < 200 and file.chunks:
        first = file.docs[0]
        for chunk in chance.sample(file.chunks, min(2, len(file.chunks))):
            text = file.without(chunk.chunk.start_byte, chunk.chunk.end_byte, first)
            yield _whole("file", first.text, file, chunk, text)
    for doc in file.docs:
        if doc.about is not None:
            yield from _of_doc(file, doc, doc.about, chance)
        elif chance.random() < _REMARKS and doc.start > 200:
            place = file.chunk_at(doc.start)
            if place is not None:
                text = file.without(place.chunk.start_byte, place.chunk.end_byte, doc)
                yield _whole("remark", doc.text, file, place, text)
    for item in file.found:
        if not item.minor and chance.random() < _NAMES and _MIN_BODY < item.end - item.start < _MAX_BODY:
            yield from _of_name(file, item)


def _of_doc(file: _File, doc: Doc, item: Definition, chance: random.Random) -> Iterator[Pair]:
    chunk = file.chunk_at(item.start)
    if chunk is None:
        return
    if chance.random() < _WHOLE or item.end - item.start > _MAX_BODY:
        text = file.without(chunk.chunk.start_byte, chunk.chunk.end_byte, doc)
        yield _whole("doc", doc.text, file, chunk, text)
    elif item.end - item.start > _MIN_BODY // 2:
        text = file.without(item.start, item.end, doc)
        yield Pair("doc", doc.text, file.path, ".".join(item.path), text, f"{file.path}:{chunk.chunk.start_byte}")


def _of_name(file: _File, item: Definition) -> Iterator[Pair]:
    """What it is called, asked of its body without the name."""
    last = item.name.rpartition(".")[2]
    if len(parts_of(last)) < 2 or len(query_words(last)) < 3:
        return
    body = file.source[item.start : item.end].decode("utf-8", "replace")
    masked = re.sub(rf"\b{re.escape(last)}\b", " ", body)
    query = " ".join(parts_of(last))
    yield Pair("name", query, file.path, ".".join(item.path[:-1]), masked, f"{file.path}:{item.start}")


def _whole(kind: str, query: str, file: _File, chunk: SourceChunk, text: str) -> Pair:
    return Pair(kind, query, file.path, chunk.chunk.scope, text, f"{file.path}:{chunk.chunk.start_byte}")


_NAMED = re.compile(r"``?([A-Za-z_][\w.:#]*)(?:\(\))?`")


def _paragraphs(text: str) -> Iterator[tuple[str, str]]:
    for paragraph in re.split(r"\n\s*\n", text):
        names = {match.rpartition(".")[2] for match in _NAMED.findall(paragraph)}
        if 1 <= len(names) <= 2 and 40 < len(paragraph) < 800:
            said = plain(paragraph)
            for name in names if said else ():
                yield name, said


def _of_prose(prose: list[tuple[str, str]], places: dict[str, list[Pair]], chance: random.Random) -> Iterator[Pair]:
    for name, said in prose:
        known = places.get(name, [])
        if 1 <= len(known) <= 2:
            query = said if chance.random() < 0.5 else re.sub(rf"\b{re.escape(name)}\b", " ", said)
            place = known[0]
            yield Pair("prose", query, place.path, place.scope, place.text, place.key)


def write(archive: Path, target: Path) -> None:
    """One JSON object a line."""
    found = pairs_of(archive)
    with target.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(asdict(pair)) + "\n" for pair in found)
