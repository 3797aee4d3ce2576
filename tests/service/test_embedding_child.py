"""An embedder in a child process, with a real model of BERT's kind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from kvd import paths
from kvd.config import Settings
from kvd.errors import ModelError, UnavailableError
from kvd.recall.embed import label
from kvd.recall.rank import search
from kvd.service import embedding_child
from kvd.service.embedders import Embedders
from kvd.service.embedding_child import EmbeddingChild
from kvd.service.indexer import Means, fill_index, update_index
from kvd.service.service import Service
from tests.conftest import poll
from tests.fakes.tiny_bert import LONGEST, WIDTH, write_tiny_bert

from .test_filler import pending, until
from .test_service import Values, run


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no fault here."""
    monkeypatch.setattr(embedding_child, "QUERY_S", 100.0)
    monkeypatch.setattr(embedding_child, "HANGS_S", 100.0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "bert.gguf")


@pytest.fixture
def child(model: Path) -> Iterator[EmbeddingChild]:
    embedders = Embedders()
    means = embedders.means(Settings(embedder=str(model), threads=1))
    assert isinstance(means.embedder, EmbeddingChild)
    assert means.vector_seconds == 0
    yield means.embedder
    embedders.close()


def test_vectors_come_from_another_process(child: EmbeddingChild) -> None:
    assert (child.dimension, child.pid) == (WIDTH, None)
    texts = [
        "close session",
        "close the session",
        "paint canvas",
        "",
        "<|im_end|> [SEP] \0 \ud800 ünï",
        "x y " * LONGEST,
    ]
    vectors = child.embed_documents(texts)
    assert child.pid not in (None, os.getpid())
    assert vectors.shape == (len(texts), WIDTH)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    near = vectors @ child.embed_query("close session")
    assert near[0] == pytest.approx(1.0, abs=1e-3)
    assert near[1] > near[2]
    # More than one step, in any company: the same vectors.
    many = child.embed_documents(texts * 40)
    np.testing.assert_allclose(many[: len(texts)], vectors, atol=1e-3)
    np.testing.assert_allclose(many[-len(texts) :], vectors, atol=1e-3)


def test_a_dead_child_fails_its_request_and_is_replaced(child: EmbeddingChild) -> None:
    before = child.embed_query("session")
    dead = child.pid
    assert dead
    os.kill(dead, signal.SIGSTOP)
    os.kill(dead, signal.SIGKILL)
    os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)
    np.testing.assert_array_equal(child.embed_query("session"), before)
    assert child.pid not in (None, dead)


def test_an_idle_child_is_unloaded(child: EmbeddingChild) -> None:
    child.embed_query("session")
    child.close_if_idle(60.0)
    assert child.pid is not None
    child.close_if_idle(0.0)
    assert child.pid is None


def test_a_child_that_dies_or_hangs_at_work_is_told_of(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("raise SystemExit", "print('no frame', flush=True)", "import signal; signal.pause()"):
        hangs = "pause" in program
        monkeypatch.setattr(embedding_child, "LONGEST_S", 0.5 if hangs else 20.0)
        broken = EmbeddingChild(model, "0" * 64, WIDTH, 1, (sys.executable, "-c", program))
        how = r"did not answer within 0\.5 s" if hangs else "stopped"
        with pytest.raises(UnavailableError, match=f"the embedder {how}"):
            broken.embed_query("session")
        assert broken.pid is None


def test_a_question_waits_neither_for_a_slow_child_nor_for_one_that_hangs(
    child: EmbeddingChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = child.embed_query("session")
    pid = child.pid
    assert pid
    monkeypatch.setattr(embedding_child, "QUERY_S", 0.2)
    monkeypatch.setattr(embedding_child, "HANGS_S", 2.0)
    os.kill(pid, signal.SIGSTOP)
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"did not answer within 0\.2 s"):
            child.embed_query("session")
    poll(lambda: child.pid is None)
    # No other one is started at once,
    with pytest.raises(UnavailableError, match="did not answer within 2 s"):
        child.embed_documents(["session"])
    assert child.pid is None
    # but when it has rested.
    monkeypatch.setattr(embedding_child, "QUERY_S", 100.0)
    monkeypatch.setattr(child, "_rests_until", 0.0)
    np.testing.assert_array_equal(child.embed_query("session"), before)
    assert child.pid not in (None, pid)


def test_pooling_is_what_the_file_says(tmp_path: Path, child: EmbeddingChild) -> None:
    mean = child.embed_query("close session")
    for pooling, same in ((None, True), (gguf.PoolingType.CLS, False)):
        path = write_tiny_bert(tmp_path / "other.gguf", pooling)
        other = EmbeddingChild(path, "0" * 64, WIDTH, 1)
        assert np.allclose(other.embed_query("close session"), mean, atol=1e-3) == same
        other.close()
    reranker = EmbeddingChild(write_tiny_bert(tmp_path / "rank.gguf", gguf.PoolingType.RANK), "0" * 64, WIDTH, 1)
    for _ in range(2):
        with pytest.raises(ModelError, match="reranker"):
            reranker.embed_query("close session")
        assert reranker.pid is None


def test_another_file_is_another_embedder(tmp_path: Path, model: Path) -> None:
    embedders = Embedders()
    first = embedders.means(Settings(embedder=str(model))).embedder
    assert embedders.means(Settings(embedder=str(model))).embedder is first
    write_tiny_bert(model, seed=2)
    second = embedders.means(Settings(embedder=str(model))).embedder
    assert first
    assert second
    assert label(first) != label(second)
    assert first.dimension == second.dimension
    model.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="no embedder"):
        embedders.means(Settings(embedder=str(model)))


def test_an_index_with_it_and_back_again(repository: Path, child: EmbeddingChild) -> None:
    def update(means: Means) -> int:
        return update_index(repository, Settings(), lambda progress: None, lambda: False, means).pending_vectors

    assert update(Means()) == 0
    assert update(Means(child, 0.0)) == 3
    assert child.pid is None
    assert fill_index(repository, child, lambda: False) == 0
    assert update(Means(child, 0.0)) == 0
    hit = search(repository, "close the session", 1, embedder=child)[0]
    assert hit.chunk.path == "src/session.py"
    # Both are in the cache: nothing is made again.
    child.close()
    assert update(Means(None, 0.0)) == update(Means(child, 0.0)) == 0
    assert child.pid is None


def test_the_daemon_uses_what_the_settings_name(repository: Path, model: Path) -> None:
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text(f'embedder = "{model}"\n')

    async def body(service: Service, values: Values) -> None:
        summary = await service.index(str(repository), False, values.append)
        assert summary["embedder"].startswith("gguf-")
        await until(lambda: pending(repository) == 0)
        found = await service.search("session that is expired", str(repository), 1, values.append)
        assert found["sources"][0]["path"] == "src/session.py"

    run(body)
