"""The library sentence-transformers in a child process. It is not among what the tests install, as it is large."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from kvd.config import Settings
from kvd.errors import ModelError
from kvd.service.embedders import Embedders
from tests.fakes.tiny_onnx import LONGEST, VOCABULARY, WIDTH, write_folder, write_json

pytestmark = pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="needs kvd[sentence-transformers]")

TEXTS = ["close the session", "paint", "def open user password cookie", "user " * LONGEST]


@pytest.fixture
def embedders() -> Iterator[Embedders]:
    made = Embedders()
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With random weights as safetensors, and no ONNX file."""
    from transformers import BertConfig, BertModel

    root = write_folder(tmp_path / "model")
    shutil.rmtree(root / "onnx")
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=WIDTH,
        max_position_embeddings=LONGEST,
    )
    BertModel(config).save_pretrained(root)
    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    write_json(root / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **marks})
    return root


def test_vectors_are_those_of_the_model(folder: Path, embedders: Embedders) -> None:
    import torch
    from transformers import BertModel

    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "query : "}})
    embedder = embedders.means(Settings(embedder=str(folder), threads=1)).embedder
    assert embedder is not None
    assert embedder.name.startswith("sentence-transformers-")
    model = BertModel.from_pretrained(folder).eval()

    def vector(text: str) -> np.ndarray:
        words = text.split()[: LONGEST - 2]
        ids = [VOCABULARY.index(name) for name in ("[CLS]", *words, "[SEP]")]
        with torch.no_grad():
            mean = model(torch.tensor([ids])).last_hidden_state[0].mean(dim=0).numpy()
        return np.asarray(mean / np.linalg.norm(mean))

    vectors = embedder.embed_documents(TEXTS * 5)
    np.testing.assert_allclose(vectors, np.array([vector(text) for text in TEXTS * 5]), atol=1e-5)
    np.testing.assert_allclose(embedder.embed_query("user"), vector("query : user"), atol=1e-5)


def test_weights_that_are_none_are_told_of_in_one_line(folder: Path, embedders: Embedders) -> None:
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs")
    embedder = embedders.means(Settings(embedder=str(folder), threads=1)).embedder
    assert embedder is not None
    with pytest.raises(ModelError, match="can't load") as caught:
        embedder.embed_query("session")
    assert "\n" not in caught.value.message
