from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kvd.recall.embed import default_embedder, label
from kvd.recall.features import Features
from kvd.recall.index import VECTOR_SCALE, as_int8
from kvd.recall.table import DEFAULT_FILE, TableEmbedder


def similarity(first: str, second: str) -> float:
    embedder = default_embedder()
    return float(embedder.embed_query(first) @ embedder.embed_query(second))


def test_shapes_and_lengths() -> None:
    embedder = default_embedder()
    vectors = embedder.embed_documents(["def a(): pass", "open the file", "", "12345678901"])
    assert vectors.shape == (4, embedder.dimension)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 0, 0], abs=1e-5)
    assert embedder.embed_documents([]).shape == (0, embedder.dimension)
    assert np.linalg.norm(embedder.embed_query("how does it work")) == pytest.approx(1, abs=1e-5)
    assert not embedder.embed_query("?!").any()


@pytest.mark.parametrize(
    ("near", "far"),
    [
        # Forms and typos.
        (("auth", "authenticate"), ("auth", "serialize")),
        (("receive", "recieve"), ("receive", "compile")),
        (("get_user_name", "username getter"), ("get_user_name", "matrix inverse")),
        (("Tokenizer", "tokenize"), ("Tokenizer", "scheduler")),
        # Words that mean the same.
        (("remove", "delete"), ("remove", "encode")),
        (("download", "fetch"), ("download", "sort")),
        (("error", "exception"), ("error", "rectangle")),
        (("directory", "folder"), ("directory", "mutex")),
        (("image", "picture"), ("image", "socket")),
    ],
)
def test_forms_typos_and_synonyms_are_near(near: tuple[str, str], far: tuple[str, str]) -> None:
    assert similarity(*near) > similarity(*far) + 0.05


def test_a_question_finds_code_that_shares_no_word_with_it() -> None:
    embedder = default_embedder()
    code = [
        "def unlink(path):\n    os.remove(path)\n    shutil.rmtree(path.parent)",
        "def render(canvas):\n    canvas.stroke(color)\n    canvas.fill_rectangle(width, height)",
        "def handshake(sock):\n    sock.connect(host, port)\n    tls.verify(certificate)",
    ]
    asked = ["delete a directory", "draw a shape", "open a secure connection to the server"]
    documents = embedder.embed_documents(code)
    assert [int(np.argmax(documents @ embedder.embed_query(text))) for text in asked] == [0, 1, 2]


def test_words_that_every_question_has_say_nothing() -> None:
    assert similarity("how does the parser work?", "parser") == pytest.approx(1, abs=1e-5)


def test_a_document_weighs_words_otherwise_than_a_question() -> None:
    embedder = TableEmbedder()
    both = float(embedder.embed_query("return session") @ embedder.embed_documents(["return session"])[0])
    assert 0.5 < both < 0.9999


def test_repeats_count_logarithmically() -> None:
    features = Features(["pars", "valu"], 16)
    assert features.document("parser value parser") == {0: pytest.approx(1 + np.log(2)), 1: 1.0}


def test_unknown_words_share_the_buckets_of_their_grams() -> None:
    features = Features(["pars"], 16)
    rows = features.document("zyx")
    assert min(rows) >= 1
    assert sum(rows.values()) == pytest.approx(1.0)
    assert features.document("90210") == {}


def test_an_identifier_counts_as_its_parts_and_as_a_known_whole() -> None:
    features = Features(["web", "socket", "websocket"], 16)
    assert features.document("WebSocket") == {0: 1.0, 1: 1.0, 2: 1.0}


def test_same_in_every_process() -> None:
    code = (
        "import hashlib; from kvd.recall.embed import default_embedder;"
        "print(hashlib.sha256(default_embedder().embed_query('stable vektors').tobytes()).hexdigest())"
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
    assert cosines == pytest.approx(vectors @ vectors[0], abs=0.03)
    assert list(np.argsort(distances)) == list(np.argsort(-(vectors @ vectors[0])))


def test_the_table_that_ships() -> None:
    assert label(default_embedder()) == "code-words/1/160"
    embedder = TableEmbedder()
    assert DEFAULT_FILE.stat().st_size < 4.2e6
    with np.load(DEFAULT_FILE, allow_pickle=False) as arrays:
        words = bytes(arrays["words"]).decode("utf-8").split("\n")
        assert arrays["vectors"].shape == (len(words) + int(arrays["buckets"]), embedder.dimension)
        assert arrays["vectors"].dtype == np.int8
        assert np.isfinite(arrays["asking"]).all()
        assert np.isfinite(arrays["found"]).all()
    # Its words are reduced as texts are: else the table would have to be trained anew.
    assert {"rout", "pars", "clos", "session", "websocket"} <= set(words)


def test_a_table_of_other_features_is_refused(tmp_path: Path) -> None:
    with np.load(DEFAULT_FILE, allow_pickle=False) as arrays:
        other = {**arrays, "features": np.int64(99)}
    np.savez(tmp_path / "table.npz", **other)
    with pytest.raises(ValueError, match="features 99"):
        TableEmbedder(tmp_path / "table.npz")


def test_embedding_is_fast_enough() -> None:
    embedder = default_embedder()
    chunk = "\n".join(f"def handler_{n}(request, response):\n    return respond(request.path, {n})" for n in range(25))
    embedder.embed_documents([chunk])
    started = time.process_time()
    embedder.embed_documents([f"{chunk}\nname_{n}" for n in range(200)])
    assert time.process_time() - started < 1.0
