"""Packages that training never sees, as a benchmark for `kvd bench recall`: their own docs ask for what they describe.

A question is the first sentence of a definition's doc, and that doc is cut out of its file. It is asked twice: once
its place is the definition's lines (category `lines`), once the whole file (`file`). Besides, names are asked for
(`name`), and what is in `questions.txt` (`asked`).
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvd.recall.places import path_factor
from kvd.recall.words import query_words
from kvd.source import syntax
from kvd.source.syntax import Definition
from kvd.training.archives import package_of, sources
from kvd.training.docs import Doc, docs

PER_PACKAGE, NAMES = 40, 12
_MAX_QUERY_WORDS = 14
_WHOLE = 20_000_000
QUESTIONS = Path(__file__).resolve().parent / "questions.txt"
"""Written by hand: what a user would ask; their places are whole files (category `asked`)."""


def write_benchmark(held: list[Path], target: Path) -> None:
    """`repos.json`, `annotations/` and `checkouts/` in `target`."""
    (target / "annotations").mkdir(parents=True, exist_ok=True)
    entries = []
    for archive in held:
        name = package_of(archive)
        root = target / "checkouts" / name
        questions = _package(archive, root) + list(_asked_by_hand(name, root))
        (target / "annotations" / f"{name}.json").write_text(json.dumps(questions, indent=1), "utf-8")
        entries.append({"name": name, "language": "", "url": "", "revision": archive.name})
    (target / "repos.json").write_text(json.dumps(entries, indent=1), "utf-8")


def _asked_by_hand(package: str, root: Path) -> Iterator[dict[str, Any]]:
    for line in QUESTIONS.read_text("utf-8").splitlines():
        name, *rest = (part.strip() for part in line.split(" | "))
        if name == package:
            query, *files = rest
            known = [file for file in files if (root / file).is_file()]
            if known:
                yield {"query": query, "category": "asked", "relevant": known}


def _package(archive: Path, root: Path) -> list[dict[str, Any]]:
    chance = random.Random(zlib.crc32(archive.name.encode()))
    texts: dict[str, bytes] = {}
    found: list[tuple[str, Doc]] = []
    named: list[tuple[str, Definition]] = []
    for path, language, text in sources(archive, _WHOLE):
        texts[path] = source = text.encode("utf-8")
        tree = syntax.parse(language, source)
        if tree is None or path_factor(path, set()) < 1:
            continue
        defined = syntax.definitions(language, tree, source)
        named += [(path, item) for item in defined if not item.minor and len(item.name) > 3]
        for doc in docs(language, tree, source, defined):
            if doc.about is not None and len(query_words(_question(doc.text))) >= 3:
                found.append((path, doc))
    # One a definition; what many share is no question.
    said = [doc.text for _, doc in found]
    found = [item for item in found if said.count(item[1].text) == 1]
    chosen = sorted(chance.sample(found, min(PER_PACKAGE, len(found))), key=lambda item: (item[0], -item[1].start))
    for path, doc in chosen:
        # Line breaks stay, so that all lines keep their numbers.
        gap = re.sub(rb"[^\n]", b"", texts[path][doc.start : doc.end])
        texts[path] = texts[path][: doc.start] + gap + b" " * (doc.end - doc.start - len(gap)) + texts[path][doc.end :]
    for path, source in texts.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source)
    asked = [question for path, doc in chosen for question in _asked(path, doc, texts[path])]
    return asked + list(_named(named, texts, chance))


def _question(text: str) -> str:
    sentence = re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]
    return " ".join(sentence.split()[:_MAX_QUERY_WORDS]).rstrip(".")


def _asked(path: str, doc: Doc, source: bytes) -> list[dict[str, Any]]:
    assert doc.about is not None
    lines = _lines(path, doc.about, source)
    query = _question(doc.text)
    return [
        {"query": query, "category": "lines", "relevant": [lines]},
        {"query": query, "category": "file", "relevant": [path]},
    ]


def _named(
    named: list[tuple[str, Definition]], texts: dict[str, bytes], chance: random.Random
) -> Iterator[dict[str, Any]]:
    """Some names that are defined once, asked for as they are, half of them within what they are defined in."""
    paths = [item.path[-2:] for _, item in named]
    once = [(path, item) for path, item in named if paths.count(item.path[-2:]) == 1]
    for path, item in chance.sample(once, min(NAMES, len(once))):
        query = ".".join(item.path[-2:]) if chance.random() < 0.5 else item.name
        if re.fullmatch(r"[\w.]+", query):
            yield {"query": query, "category": "name", "relevant": [_lines(path, item, texts[path])]}


def _lines(path: str, item: Definition, source: bytes) -> dict[str, Any]:
    first, last = (source.count(b"\n", 0, place) + 1 for place in (item.start, item.end - 1))
    return {"path": path, "start_line": first, "end_line": last}
