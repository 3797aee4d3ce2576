"""Vectors that are made behind the index: by a daemon's service, with an embedder that can be held up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kvd.config import Settings
from kvd.errors import UnavailableError
from kvd.recall.embed import default_embedder, label
from kvd.service.embedders import Embedders
from kvd.service.filler import Filler
from kvd.service.indexer import Means, index_stats
from kvd.service.service import Service
from tests.fakes.hashed_words import HashedWords

from .test_service import Values, question, run


class Held(HashedWords):
    """Embeds documents one batch for each `permits.release()`."""

    name = "held"

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)
        self.at_work = threading.Event()
        self.batches: list[int] = []
        self.failing = False

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.at_work.set()
        assert self.permits.acquire(timeout=10.0)
        if self.failing:
            raise UnavailableError("the embedder stopped")
        self.batches.append(len(texts))
        return super().embed_documents(texts)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = super().embed_documents([text])[0]
        return vector


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    embedder = Held()
    monkeypatch.setattr(Embedders, "means", lambda self, settings: Means(embedder, 0.0))
    return embedder


@pytest.fixture
def large(repository: Path) -> Path:
    """With some hundred chunks."""
    for number in range(60):
        body = "\n\n".join(f"def function_{number}_{part}():\n" + "    value = 1\n" * 60 for part in range(4))
        (repository / f"f{number}.py").write_text(body)
    return repository


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(10.0):
        while not condition():
            await asyncio.sleep(0.01)


def pending(root: Path) -> int:
    return int(index_stats(root)["pending_vectors"])


def test_search_goes_on_by_words_while_vectors_come(large: Path, held: Held) -> None:
    async def body(service: Service, values: Values) -> None:
        summary = await service.index(str(large), False, values.append)
        assert summary["pending_vectors"] == summary["chunks"] > 100
        # The first batch is being made, and takes its time: neither an index run nor a search waits for it.
        await until(held.at_work.is_set)
        found = await service.search("Session.is_expired", str(large), 3, values.append)
        assert found["sources"][0]["path"] == "src/session.py"
        assert pending(large) == summary["chunks"]
        (state,) = (await service.status())["indexes"]
        assert state["pending_vectors"] == summary["chunks"]
        # With some vectors and not the one of what is asked for.
        (large / "zz.py").write_text("unheardof = 1\n")
        held.permits.release(1)
        await until(lambda: pending(large) < summary["chunks"])
        found = await service.search("unheardof", str(large), 3, values.append)
        assert found["sources"][0]["path"] == "zz.py"
        assert pending(large)
        held.permits.release(1_000)
        await until(lambda: pending(large) == 0)
        assert sum(held.batches) == summary["chunks"] + 1
        found = await service.search("Session.is_expired", str(large), 3, values.append)
        assert found["sources"][0]["path"] == "src/session.py"

    run(body)


def test_a_question_and_an_index_run_come_before_vectors(large: Path, held: Held) -> None:
    async def body(service: Service, values: Values) -> None:
        await service.index(str(large), False, values.append)
        await until(held.at_work.is_set)
        with service._repositories.filler.making_way():
            held.permits.release(1_000)
            await until(lambda: len(held.batches) == 1)
            (large / "late.py").write_text("def late_function(): pass\n")
            found = await service.search("late_function", str(large), 1, values.append)
            assert found["sources"][0]["path"] == "late.py"
            assert len(held.batches) == 1
        await until(lambda: pending(large) == 0)

    run(body)


def test_closing_stops_after_the_batch_and_the_next_run_goes_on(large: Path, held: Held) -> None:
    async def body(service: Service, values: Values) -> None:
        await service.index(str(large), False, values.append)
        held.permits.release(3)
        await until(lambda: len(held.batches) == 3)
        closing = asyncio.create_task(service._repositories.close())
        await asyncio.sleep(0)
        held.permits.release(1)
        await closing

    run(body)
    done = sum(held.batches)
    held.permits.release(1_000)

    async def again(service: Service, values: Values) -> None:
        summary = await service.index(str(large), False, values.append)
        assert summary["pending_vectors"] == summary["chunks"] - done
        await until(lambda: pending(large) == 0)
        assert sum(held.batches) == summary["chunks"]

    run(again)


def test_an_embedder_that_fails_is_told_of_and_tried_again(repository: Path, held: Held) -> None:
    async def body(service: Service, values: Values) -> None:
        held.failing = True
        held.permits.release(1_000)
        await service.index(str(repository), False, values.append)
        await until(lambda: service._repositories.filler.fault)
        assert (await service.status())["embedder_error"] == "the embedder stopped"
        found = await service.search("Session", str(repository), 3, values.append)
        assert found["sources"]
        held.failing = False
        await service.index(str(repository), False, values.append)
        await until(lambda: pending(repository) == 0 and not service._repositories.filler.fault)
        assert (await service.status())["embedder_error"] == ""

    run(body)


def test_the_default_embedder_is_done_when_the_run_is(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        summary = await service.index(str(repository), False, values.append)
        assert (summary["pending_vectors"], summary["embedder"]) == (0, label(default_embedder()))
        assert await service.ask(str(repository), question("sessions that expire"), values.append)

    run(body)


def test_repositories_take_turns() -> None:
    left = {Path("/a"): 3, Path("/b"): 2}
    order: list[Path] = []

    def fill(root: Path, stop: object) -> int:
        order.append(root)
        left[root] -= 1
        return left[root]

    async def main() -> None:
        filler = Filler(fill)
        for root in left:
            filler.want(root)
        await until(lambda: not any(left.values()))
        await filler.close()

    asyncio.run(main())
    assert [root.name for root in order] == ["a", "b", "a", "b", "a"]


def test_settings_that_name_no_embedder_are_refused() -> None:
    embedders = Embedders()
    for name in ("relative.gguf", "/nowhere/model.gguf"):
        with pytest.raises(Exception, match="embedder") as caught:
            embedders.means(Settings(embedder=name))
        assert caught.value.hint == "kvd config unset embedder"  # type: ignore[attr-defined]
