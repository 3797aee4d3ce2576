"""Which embedding models are taken, by what they say of themselves, and what else they are told apart by."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from kvd.errors import ModelError
from kvd.models import embedding
from kvd.models.embedding import read_embedding_model
from tests.fakes.tiny_onnx import VOCABULARY, WIDTH, make_weights, write_folder, write_json, write_onnx, write_tokenizer

Change = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if sentence-transformers were installed, and onnxruntime not."""
    monkeypatch.setattr(embedding, "_EXTRAS", {"onnx": ("no_such_package",), "sentence-transformers": ()})


def test_a_folder_says_how_it_is_used(folder: Path) -> None:
    prompts = {"query": "query : ", "passage": "document : "}
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": None})
    model = read_embedding_model(folder)
    assert (model.kind, model.dimension, model.prompts) == ("onnx", WIDTH, ("query : ", "document : "))
    assert model.about == "onnx, mean of its tokens"
    assert model.settings["longest"] == 24
    # A limit that only the tokenizer names; numbers without one are written so.
    (folder / "sentence_bert_config.json").unlink()
    write_json(folder / "tokenizer_config.json", {"model_max_length": 10**30})
    assert read_embedding_model(folder).settings["longest"] == 24
    write_json(folder / "tokenizer_config.json", {"model_max_length": 7})
    assert read_embedding_model(folder).settings["longest"] == 7


@pytest.mark.parametrize(
    ("said", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "lasttoken", "embedding_dimension": WIDTH}, "last"),
        ({"pooling_mode": ["max"]}, "max"),
        ({"word_embedding_dimension": WIDTH}, "mean"),
    ],
)
def test_pooling_old_and_new(folder: Path, said: dict[str, object], pooling: str) -> None:
    write_json(folder / "1_Pooling" / "config.json", said)
    assert read_embedding_model(folder).settings["pooling"] == pooling


def test_a_file_alone(tmp_path: Path, folder: Path) -> None:
    alone = write_onnx(tmp_path / "alone.onnx", make_weights())
    with pytest.raises(ModelError, match=r"no tokenizer\.json beside it"):
        read_embedding_model(alone)
    write_tokenizer(tmp_path / "tokenizer.json")
    assert read_embedding_model(alone).settings["pooling"] == "mean"
    # What is around a file counts, also for one that has been named itself.
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "cls"})
    assert read_embedding_model(folder / "onnx" / "model.onnx") == read_embedding_model(folder)
    pooled = write_onnx(tmp_path / "pooled.onnx", make_weights(), "sentence_embedding")
    assert read_embedding_model(pooled).settings["pooling"] == ""


CHANGES: dict[str, Change] = {
    "weights": lambda root: write_onnx(root / "onnx" / "model.onnx", make_weights(2)),
    "tokenizer": lambda root: write_tokenizer(root / "tokenizer.json", (*VOCABULARY[:4], *reversed(VOCABULARY[4:]))),
    "pooling": lambda root: write_json(root / "1_Pooling" / "config.json", {"pooling_mode": "max"}),
    "length": lambda root: write_json(root / "sentence_bert_config.json", {"max_seq_length": 9}),
    "prompts": lambda root: write_json(root / "config_sentence_transformers.json", {"prompts": {"query": "q "}}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_makes_other_vectors_makes_another_hash(tmp_path: Path, folder: Path, change: str) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    before = read_embedding_model(folder).sha256()
    assert read_embedding_model(moved).sha256() == before
    CHANGES[change](moved)
    assert read_embedding_model(moved).sha256() != before


def test_weights_in_files_beside_it(folder: Path) -> None:
    path = folder / "onnx" / "model.onnx"
    whole = onnx.load(path)
    onnx.save(whole, path, save_as_external_data=True, location="model.onnx_data", size_threshold=64)
    before = read_embedding_model(folder)
    data = path.with_name("model.onnx_data")
    assert ("model.onnx_data", data) in before.files
    sha256 = before.sha256()
    with data.open("r+b") as file:
        file.write(b"\x01")
    assert read_embedding_model(folder).sha256() != sha256
    data.unlink()
    with pytest.raises(ModelError, match=r"needs model\.onnx_data beside it"):
        read_embedding_model(folder)
    for location in ("../secret", "/etc/passwd"):
        for tensor in whole.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location
        path.write_bytes(whole.SerializeToString())
        with pytest.raises(ModelError, match="from outside its folder"):
            read_embedding_model(folder)


def _without_onnx(root: Path) -> None:
    shutil.rmtree(root / "onnx")


def _pickled(root: Path) -> None:
    _without_onnx(root)
    (root / "pytorch_model.bin").write_bytes(b"\x80\x04")


def _pipe(root: Path) -> None:
    (root / "onnx" / "model.onnx").unlink()
    os.mkfifo(root / "onnx" / "model.onnx")


def _writes_text(root: Path) -> None:
    write_onnx(root / "onnx" / "model.onnx", make_weights(), more=("past_key_values.0.key",))


def _foreign_module(root: Path) -> None:
    write_json(root / "modules.json", [{"path": "", "type": "modeling_own.Transformer"}])


def _dense(root: Path) -> None:
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds.items()]
    write_json(root / "modules.json", modules)


def _generates(root: Path) -> None:
    (root / "modules.json").unlink()
    write_json(root / "config.json", {"architectures": ["Qwen2ForCausalLM"]})


WRONG: dict[str, tuple[Change, str]] = {
    "no modules": (lambda root: (root / "modules.json").unlink(), "does not say how its vectors are pooled"),
    "no pooling": (lambda root: (root / "1_Pooling" / "config.json").unlink(), "how vectors are pooled is not known"),
    "no tokenizer": (lambda root: (root / "tokenizer.json").unlink(), "no tokenizer.json beside it"),
    "no weights": (_without_onnx, "no model.safetensors, and no model.onnx"),
    "a pipe": (_pipe, "no model.safetensors, and no model.onnx"),
    "pickled weights": (_pickled, r"pickled \(pytorch_model.bin\)"),
    "a generator, by its inputs": (_writes_text, "no embedding model: it takes past_key_values.0.key"),
    "a generator, by its outputs": (
        lambda root: write_onnx(root / "onnx" / "model.onnx", make_weights(), "logits"),
        "no embedding model: it gives logits",
    ),
    "a generator, by its class": (_generates, "writes text"),
    "code of its own": (_foreign_module, "the module modeling_own.Transformer, which kvd does not run"),
    "more modules": (_dense, "what kvd does not do: Dense"),
    "damaged JSON": (lambda root: (root / "modules.json").write_text("["), "no JSON"),
    "cut off": (lambda root: (root / "onnx" / "model.onnx").write_bytes(b"\x08\x08\x3a\x7f"), "cut off"),
    "a pointer of Git LFS": (lambda root: (root / "onnx" / "model.onnx").write_text("version 1\n"), "no ONNX model"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_folders(folder: Path, case: str) -> None:
    change, message = WRONG[case]
    change(folder)
    with pytest.raises(ModelError, match=message) as caught:
        read_embedding_model(folder)
    assert "\n" not in caught.value.message


def test_several_onnx_files_are_a_choice(folder: Path) -> None:
    path = folder / "onnx" / "model.onnx"
    for name in ("model_O1.onnx", "model_O2.onnx"):
        shutil.copy(path, path.with_name(name))
    assert read_embedding_model(folder).path == path
    path.unlink()
    with pytest.raises(ModelError, match="several ONNX files"):
        read_embedding_model(folder)
    assert read_embedding_model(path.with_name("model_O2.onnx")).dimension == WIDTH


def test_without_the_extra_the_hint_installs_it(folder: Path, library: None) -> None:
    with pytest.raises(ModelError, match="needs no-such-package, not installed") as caught:
        read_embedding_model(folder)
    assert caught.value.hint == "pip install 'kvd[onnx]'"
    # The library does as well, where there are weights for it.
    (folder / "model.safetensors").write_bytes(b"")
    assert read_embedding_model(folder).kind == "sentence-transformers"


def test_a_folder_for_the_library(folder: Path, library: None) -> None:
    shutil.rmtree(folder / "onnx")
    (folder / "model.safetensors").write_bytes(b"weights")
    model = read_embedding_model(folder)
    assert (model.kind, model.path, model.dimension) == ("sentence-transformers", folder, WIDTH)
    sha256 = model.sha256()
    (folder / "model.safetensors").write_bytes(b"others!")
    assert read_embedding_model(folder).sha256() != sha256
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="adapter"):
        read_embedding_model(folder)
