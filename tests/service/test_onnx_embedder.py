"""Vectors of a real, tiny ONNX model in a child process, held against what numpy computes from the same weights."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from kvd import paths
from kvd.config import Settings
from kvd.doctor.native import embedder as examined
from kvd.errors import ModelError, UsageError
from kvd.recall.embed import Embedder, label
from kvd.service.embedders import Embedders
from kvd.service.embedding_child import EmbeddingChild
from kvd.service.service import Service
from tests.fakes.tiny_onnx import (
    LONGEST,
    WIDTH,
    Array,
    Reference,
    make_weights,
    write_folder,
    write_json,
    write_onnx,
    write_tokenizer,
)

from .test_filler import pending, until
from .test_service import Values, run

TEXTS = ["close the session", "paint", "", "def open user password cookie", "UNHEARD of \0 \ud800 ünï words"]


@pytest.fixture
def embedders() -> Iterator[Embedders]:
    made = Embedders()
    yield made
    made.close()


def named(embedders: Embedders, path: Path) -> Embedder:
    embedder = embedders.means(Settings(embedder=str(path), threads=1)).embedder
    assert embedder is not None
    return embedder


def expected(texts: list[str], pooling: str, seed: int = 1) -> Array:
    reference = Reference(make_weights(seed))
    rows = []
    for text in texts:
        states = reference.states(text.lower())
        ways = {"cls_token": states[0], "lasttoken": states[-1], "max_tokens": states.max(axis=0)}
        row = ways.get(pooling, states.mean(axis=0))
        rows.append(row / np.linalg.norm(row))
    return np.array(rows, np.float32)


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token", "max_tokens", "lasttoken"])
def test_vectors_are_what_the_model_says(tmp_path: Path, embedders: Embedders, pooling: str) -> None:
    embedder = named(embedders, write_folder(tmp_path / "model", pooling))
    # Texts of other lengths beside it change nothing.
    vectors = embedder.embed_documents(TEXTS * 60)
    assert vectors.shape == (len(TEXTS) * 60, WIDTH)
    wanted = expected(TEXTS, pooling)
    np.testing.assert_allclose(vectors, np.tile(wanted, (60, 1)), atol=2e-5)
    for text, row in zip(TEXTS, wanted, strict=True):
        np.testing.assert_allclose(embedder.embed_query(text), row, atol=2e-5)


def test_what_is_too_long_is_cut(tmp_path: Path, embedders: Embedders) -> None:
    embedder = named(embedders, write_folder(tmp_path / "model", longest=6))
    # The first and the last token are the model's marks.
    long, cut = "open the cookie session user password", "open the cookie session"
    np.testing.assert_allclose(embedder.embed_documents([long]), expected([cut], "mean_tokens"), atol=2e-5)
    most = named(embedders, write_folder(tmp_path / "model"))
    np.testing.assert_allclose(
        most.embed_query("user " * 500), expected(["user " * (LONGEST - 2)], "mean_tokens")[0], atol=2e-5
    )


def test_questions_and_documents_have_prompts(tmp_path: Path, embedders: Embedders) -> None:
    root = write_folder(tmp_path / "model")
    prompts = {"query": "query : ", "document": "document : "}
    write_json(root / "config_sentence_transformers.json", {"prompts": prompts})
    embedder = named(embedders, root)
    np.testing.assert_allclose(embedder.embed_query("user"), expected(["query : user"], "mean_tokens")[0], atol=2e-5)
    np.testing.assert_allclose(
        embedder.embed_documents(["user"]), expected(["document : user"], "mean_tokens"), atol=2e-5
    )


def test_a_file_that_pools_by_itself(tmp_path: Path, embedders: Embedders) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    path = write_onnx(tmp_path / "model.onnx", make_weights(), "sentence_embedding")
    np.testing.assert_allclose(
        named(embedders, path).embed_query("close the door"), expected(["close the door"], "mean_tokens")[0], atol=2e-5
    )


def test_links_as_in_the_cache_of_a_hub(tmp_path: Path, embedders: Embedders) -> None:
    root = write_folder(tmp_path / "model")
    path = root / "onnx" / "model.onnx"
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="model.onnx_data", size_threshold=64)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, file in enumerate(sorted(file for file in root.rglob("*") if file.is_file())):
        file.rename(blobs / f"{number:040x}")
        file.symlink_to(os.path.relpath(blobs / f"{number:040x}", file.parent))
    embedder = named(embedders, root)
    np.testing.assert_allclose(embedder.embed_documents(TEXTS), expected(TEXTS, "mean_tokens"), atol=2e-5)


def test_another_model_in_its_place_is_another_embedder(tmp_path: Path, embedders: Embedders) -> None:
    root = write_folder(tmp_path / "model")
    first = named(embedders, root)
    assert named(embedders, root) is first
    write_onnx(root / "onnx" / "model.onnx", make_weights(2))
    second = named(embedders, root)
    assert label(first) != label(second)
    assert label(first).startswith("onnx-")
    assert first.dimension == second.dimension
    np.testing.assert_allclose(second.embed_documents(TEXTS), expected(TEXTS, "mean_tokens", 2), atol=2e-5)
    (root / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no embedder: .* no tokenizer\.json") as caught:
        named(embedders, root)
    assert caught.value.hint == "kvd config unset embedder"
    with pytest.raises(UsageError):
        named(embedders, tmp_path / "nothing")


def test_a_dead_child_is_replaced_and_an_idle_one_unloaded(tmp_path: Path, embedders: Embedders) -> None:
    child = named(embedders, write_folder(tmp_path / "model"))
    assert isinstance(child, EmbeddingChild)
    before = child.embed_query("session")
    dead = child.pid
    assert dead
    os.kill(dead, signal.SIGKILL)
    os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)
    np.testing.assert_array_equal(child.embed_query("session"), before)
    assert child.pid not in (None, dead)
    embedders.close_if_idle(0.0)
    assert child.pid is None


def test_what_can_not_be_loaded_is_told_of_in_one_line(tmp_path: Path, embedders: Embedders) -> None:
    root = write_folder(tmp_path / "model")
    (root / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="can't load") as caught:
        named(embedders, root).embed_query("session")
    assert "\n" not in caught.value.message
    (finding,) = examined(str(root))
    assert finding.verdict == "fault"


def test_the_doctor_tries_it(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "model")
    (finding,) = examined(str(root))
    assert (finding.verdict, finding.text) == ("ok", f"{root}, {WIDTH} numbers a vector (onnx, mean of its tokens)")
    (root / "modules.json").unlink()
    (finding,) = examined(str(root))
    assert finding.verdict == "fault"
    assert "pooled" in finding.text


def test_the_daemon_uses_what_the_settings_name(repository: Path, tmp_path: Path) -> None:
    root = write_folder(tmp_path / "model")
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text(f'embedder = "{root}"\n')

    async def body(service: Service, values: Values) -> None:
        summary = await service.index(str(repository), False, values.append)
        assert summary["embedder"].startswith("onnx-")
        await until(lambda: pending(repository) == 0)
        found = await service.search("session that is expired", str(repository), 1, values.append)
        assert found["sources"][0]["path"] == "src/session.py"

    run(body)
