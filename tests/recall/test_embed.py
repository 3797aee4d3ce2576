from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from kvd.recall.embed import default_embedder, label
from kvd.recall.index import VECTOR_SCALE, as_int8


def similarity(first: str, second: str) -> float:
    embedder = default_embedder()
    return float(embedder.embed_query(first) @ embedder.embed_query(second))


def test_shapes_and_lengths() -> None:
    embedder = default_embedder()
    vectors = embedder.embed_documents(["def a(): pass", "open the file", ""])
    assert vectors.shape == (3, embedder.dimension)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 0], abs=1e-5)
    assert embedder.embed_documents([]).shape == (0, embedder.dimension)


@pytest.mark.parametrize(
    ("near", "far"),
    [
        (("auth", "authenticate"), ("auth", "serialize")),
        (("receive", "recieve"), ("receive", "compile")),
        (("get_user_name", "username getter"), ("get_user_name", "matrix inverse")),
        (("Tokenizer", "tokenize"), ("Tokenizer", "scheduler")),
    ],
)
def test_forms_and_typos_are_near(near: tuple[str, str], far: tuple[str, str]) -> None:
    assert similarity(*near) > similarity(*far) + 0.1


def test_same_in_every_process() -> None:
    code = (
        "import hashlib; from kvd.recall.embed import default_embedder;"
        "print(hashlib.sha256(default_embedder().embed_query('stable vectors').tobytes()).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_whole_numbers_keep_the_order_of_cosines() -> None:
    embedder = default_embedder()
    texts = ["open file", "open a file and read it", "close session", "the parser of expressions", "file opener"]
    vectors = embedder.embed_documents(texts)
    whole = as_int8(vectors).astype(np.float64)
    distances = np.linalg.norm(whole - whole[0], axis=1)
    cosines = 1 - distances**2 / (2 * VECTOR_SCALE**2)
    assert cosines == pytest.approx(vectors @ vectors[0], abs=0.02)
    assert list(np.argsort(distances)) == list(np.argsort(-(vectors @ vectors[0])))


def test_label() -> None:
    assert label(default_embedder()) == "hashed-words/1/256"
