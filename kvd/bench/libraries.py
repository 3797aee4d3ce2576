"""Questions about real repositories, from commits and question sets, and what kvd's own recall finds for them."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import llama_cpp
import numpy as np

from kvd import paths
from kvd.bench.questions import QuestionSet
from kvd.bench.traces import TraceChunk
from kvd.config import Settings
from kvd.errors import ModelError, RepositoryError, UsageError
from kvd.kv.bodies import Vector
from kvd.models.active import ActiveModel
from kvd.recall import database, faults
from kvd.recall.embed import default_embedder, embedded_text
from kvd.recall.rank import search
from kvd.service.indexer import update_index
from kvd.types import Chunk
from kvd.worker.prompt import Piece, select

BYTES_PER_TOKEN = 3.5
"""Of code, roughly, where no model is there to count."""

CountTokens = Callable[[str], int]

_FEWEST_WORDS = 3
_PULL_REQUEST = re.compile(r"\s*\(#\d+\)$")


class RepositoryLibrary:
    """The questions of one repository. What they recall is looked up when it is first asked for."""

    def __init__(self, root: Path, questions: Sequence[str], settings: Settings, count: CountTokens) -> None:
        """Brings the index up to date. Raises `UsageError` without questions, `RepositoryError` for no repository."""
        self.name, self._root, self._settings, self._count = root.name, root, settings, count
        self._questions = list(dict.fromkeys(questions))
        if not self._questions:
            raise UsageError(f"there is nothing to ask about {root}", hint="give a clone with its history")
        update_index(root, settings, lambda progress: None, lambda: False)
        embedder = default_embedder()
        self.vectors: Vector = np.stack([embedder.embed_query(text) for text in self._questions])
        self._chunks: dict[str, TraceChunk] = {}
        self._recalled: dict[int, list[TraceChunk]] = {}

    @property
    def questions(self) -> Sequence[str]:
        return self._questions

    def recall(self, number: int) -> list[TraceChunk]:
        """The chunks that a question gets: those that kvd ranks best and that fit the budget."""
        if number not in self._recalled:
            hits = search(self._root, self._questions[number], self._settings.top_k)
            found = [self._chunk(hit.chunk) for hit in hits]
            # Only a body's length matters here.
            pieces = [Piece(place, "", 1, 1, "", (0,) * chunk.tokens) for place, chunk in enumerate(found)]
            chosen = select(pieces, self._settings.budget, self._settings.n_ctx - self._settings.max_tokens)
            self._recalled[number] = [found[piece.index] for piece in chosen]
        return self._recalled[number]

    def places(self, number: int) -> dict[tuple[str, int, int], TraceChunk]:
        """All chunks that kvd finds for a question, by path, first and last line."""
        hits = search(self._root, self._questions[number], self._settings.top_k)
        return {(hit.chunk.path, hit.chunk.start_line, hit.chunk.end_line): self._chunk(hit.chunk) for hit in hits}

    def _chunk(self, chunk: Chunk) -> TraceChunk:
        # As with stored KV: text and scope tell bodies apart, not where they stand.
        name = hashlib.blake2b(f"{chunk.scope}\0{chunk.text}".encode("utf-8", "replace"), digest_size=16).hexdigest()
        if name not in self._chunks:
            (vector,) = default_embedder().embed_documents([embedded_text(chunk.path, chunk.scope, chunk.text)])
            self._chunks[name] = TraceChunk(name, self._count(chunk.text), vector)
        return self._chunks[name]


def commit_subjects(root: Path, most: int) -> list[str]:
    """The newest commits' subjects, oldest first, but those of merges and very short ones."""
    done = subprocess.run(
        ("git", "-C", str(root), "log", "--no-merges", "--format=%s", f"--max-count={most}"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise RepositoryError(f"git can't read the history of {root}: {done.stderr.strip()}", hint="give a clone")
    subjects = [_PULL_REQUEST.sub("", line) for line in reversed(done.stdout.splitlines())]
    return [subject for subject in subjects if len(subject.split()) >= _FEWEST_WORDS]


def definitions(root: Path) -> list[str]:
    """A question about each name that is defined in an indexed repository, in the order of names."""
    file = paths.index_file(root)
    db = database.open_for_reading(file, root)
    try:
        with faults.damage_noticed(file, root):
            found = database.rows(db, "SELECT DISTINCT symbols FROM chunks")
    finally:
        db.close()
    names = {name for (symbols,) in found for name in str(symbols).splitlines()}
    return [f"What does {name} do?" for name in sorted(names)]


def prepared_questions(name: str, sets: Sequence[QuestionSet], retrieval: Path | None) -> list[str]:
    """The questions about repository `name` in question sets and in a retrieval benchmark's `annotations/NAME.json`."""
    found = [entry["question"] for item in sets if item.name == name for entry in item.questions]
    file = retrieval / "annotations" / f"{name}.json" if retrieval is not None else None
    if file is not None and file.exists():
        try:
            found += [str(entry["query"]) for entry in json.loads(file.read_text("utf-8"))]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(f"{file} holds no queries: {error}", hint="a list of objects with a query each") from error
    return found


def spread(few: Sequence[str], many: Sequence[str]) -> list[str]:
    """`few` put in between `many` at equal distances."""
    if not few:
        return list(many)
    result, taken = list[str](), 0
    for index, text in enumerate(few):
        until = (index + 1) * len(many) // (len(few) + 1)
        result += [*many[taken:until], text]
        taken = until
    return [*result, *many[taken:]]


def by_bytes(text: str) -> int:
    """Tokens of a text, estimated."""
    return max(1, round(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN))


def by_vocabulary(model: ActiveModel) -> CountTokens:
    """Tokens of a text as `model` has them; loads its vocabulary alone. Raises `ModelError`."""
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    loaded = llama_cpp.llama_model_load_from_file(str(model.path).encode(), params)
    if not loaded:
        raise ModelError(f"llama.cpp can't load {model.path}", hint="kvd setup")
    vocabulary = llama_cpp.llama_model_get_vocab(loaded)

    def count(text: str) -> int:
        data = text.encode("utf-8", "replace")
        # Without room for the tokens it says how many there are, negated.
        return max(1, -int(llama_cpp.llama_tokenize(vocabulary, data, len(data), None, 0, False, False)))

    return count
