"""Conversations with the benchmark's daemon, as any client has them, and what their answers say of tokens."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from kvd import paths
from kvd.bench.folders import living_in, writable
from kvd.bench.libraries import CountTokens, definitions
from kvd.bench.pressure import resident
from kvd.config import Settings
from kvd.errors import ModelError, UsageError
from kvd.recall.rank import search
from kvd.rpc.client import Client
from kvd.service.indexer import update_index
from kvd.source.tree import find_root

_NO_FILE = "/no/such/file"
"""A pattern of files that none matches."""


_BETWEEN = 16
"""Tokens that a chat template has between two turns, with "More code:" and the answer's last token, at most."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A turn as it was answered. `tokens` and `conversation` are those of the result of `ask`."""

    session: str
    question: str
    answer: str
    finish: str
    ttft_ms: float
    tokens: dict[str, int]
    conversation: dict[str, int]

    @property
    def turn(self) -> int:
        return self.conversation["turn"]

    @property
    def computed(self) -> int:
        """Tokens that were computed before the answer began."""
        return self.tokens["prefilled"] + self.tokens["recomputed"] + self.tokens["fresh"]

    @property
    def prompt(self) -> int:
        """Tokens of all turns up to the answer: what is computed, if not more, where nothing is kept."""
        # Of an answer that ends by its length the last token is computed with the next turn.
        return self.conversation["tokens"] - self.tokens["generated"] + (self.finish == "length")

    @property
    def again(self) -> int:
        """Tokens of earlier turns that were computed again; what leads from one turn to the next is none."""
        return max(0, self.conversation["computed"] - _BETWEEN) if self.turn > 1 else 0


@dataclass(frozen=True, slots=True)
class Asking:
    """How questions are asked: `budget` tokens of code at most, `max_tokens` of an answer, and nothing reused unless
    `reuse`. Without `code` none is recalled."""

    budget: int
    max_tokens: int
    reuse: bool = True
    code: bool = True


def ask(root: Path, session: str, question: str, how: Asking, client: Client | None = None) -> Reply:
    """Ask in a session of the repository at `root`; by a connection of its own where no `client` is given."""
    if client is None:
        with Client.connect() as connected:
            return ask(root, session, question, how, connected)
    params: dict[str, Any] = {
        "question": question,
        "repo": str(root),
        "session": session,
        "budget": how.budget,
        "max_tokens": how.max_tokens,
        "reuse": how.reuse,
        **({} if how.code else {"paths": [_NO_FILE]}),
    }
    result = client.call("ask", params, lambda value: None)
    if result["conversation"] is None:
        raise UsageError(f"nothing in {root} is relevant to: {question}", hint="give a repository with code")
    return Reply(
        session,
        question,
        result["answer"],
        result["finish"],
        float(result["timings_ms"]["ttft"]),
        result["tokens"],
        result["conversation"],
    )


@contextmanager
def keeping_conversations(folder: Path) -> Iterator[None]:
    """As `living_in`, and conversations are kept in `folder` too, none in the beginning, and no KV; models stay the
    user's."""
    models = paths.models_dir()
    with living_in(folder):
        data = folder / "data" / "kvd"
        writable(data, "--work", mode=0o700)
        link = data / "models"
        link.unlink(missing_ok=True)
        link.symlink_to(models)
        os.environ["XDG_DATA_HOME"] = str(folder / "data")
        yield


def start_afresh() -> None:
    """Remove conversations and KV of a run before. No daemon may have them open."""
    for file in (paths.sessions_file(), paths.store_file()):
        for suffix in ("", "-wal", "-shm"):
            Path(f"{file}{suffix}").unlink(missing_ok=True)


def write_settings(**values: int) -> None:
    """What the benchmark's daemon goes by when it is started, or loads a model; the others are the defaults."""
    file = paths.config_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{name} = {value}\n" for name, value in values.items()))


def indexed(repo: str, seed: int) -> tuple[Path, list[str]]:
    """The root of the repository at `repo`, its index brought up to date, and questions about its definitions in a
    random order. Raises `RepositoryError`."""
    root = find_root(Path(repo))
    update_index(root, Settings(), lambda progress: None, lambda: False)
    found = definitions(root)
    return root, Random(seed).sample(found, len(found))


def askable(root: Path, questions: Iterable[str], budget: int, count: CountTokens, most: int) -> list[str]:
    """The first questions, `most` at the most, that find code which fits `budget` tokens. Raises `UsageError` where
    none does."""

    def fits(question: str) -> bool:
        return any(count(hit.chunk.text) <= budget for hit in search(root, question, Settings().top_k))

    found = list(islice(filter(fits, questions), most))
    if not found:
        raise UsageError(f"no code in {root} fits {budget} tokens", hint="give a repository with code")
    return found


def loaded(root: Path, question: str, budget: int) -> dict[str, Any]:
    """The daemon's status once the model is loaded, with the memory of both processes as `resident`; nothing is in
    pool and cells but the prefix. Raises `ModelError` where the model's KV is not reused."""
    params = {"question": question, "repo": str(root), "budget": budget, "max_tokens": 1, "reuse": False}
    with Client.connect() as client:
        client.call("ask", params)
        status = client.call("status", {})
    engine = status["engine"]
    if engine.get("reuse") != "on":
        raise ModelError(f"this model's KV is not reused: {engine.get('reuse_reason')}", hint="kvd setup --model")
    return {**status, "resident": resident(status)}
