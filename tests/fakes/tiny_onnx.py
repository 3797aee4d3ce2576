"""Writes embedding models of BERT's kind as sentence-transformers does: an ONNX file, a tokenizer, and what they say.

They are real: attention over the tokens that the mask names, random weights, some kB. `Reference` computes the same
from the same weights with numpy alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WIDTH = 32
LONGEST = 24
"""Tokens that it has positions for."""

_PAD, _UNKNOWN, _FIRST, _LAST = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
_WORDS = ("def", "class", "return", "session", "close", "open", "the", "cookie", "paint", "canvas", "password", "user")
VOCABULARY = (_PAD, _UNKNOWN, _FIRST, _LAST, *_WORDS, "query", "document", ":")

Array = npt.NDArray[np.float32]
Weights = dict[str, Array]


def make_weights(seed: int = 1) -> Weights:
    random = np.random.default_rng(seed)
    shapes = {"tokens": (len(VOCABULARY), WIDTH), "positions": (LONGEST, WIDTH)}
    shapes |= dict.fromkeys(("query", "key", "value"), (WIDTH, WIDTH))
    return {name: (random.standard_normal(shape) / 3).astype(np.float32) for name, shape in shapes.items()}


class Reference:
    """What the models compute."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def states(self, words: str) -> Array:
        """The states of a text's tokens, [tokens, WIDTH]; words are parted by blanks."""
        names = [_FIRST, *(word if word in VOCABULARY else _UNKNOWN for word in words.split()), _LAST]
        return self.states_of([VOCABULARY.index(name) for name in names])

    def states_of(self, ids: list[int]) -> Array:
        weights = self._weights
        states = weights["tokens"][ids] + weights["positions"][: len(ids)]
        scores = (states @ weights["query"]) @ (states @ weights["key"]).T
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        return np.asarray(states + shares @ (states @ weights["value"]), np.float32)


def write_onnx(path: Path, weights: Weights, output: str = "last_hidden_state", more: tuple[str, ...] = ()) -> Path:
    """`output`: its name; "sentence_embedding" is the mean over the tokens.
    `more`: further inputs that it wants."""
    nodes = [
        helper.make_node("Gather", ["tokens", "input_ids"], ["looked_up"]),
        helper.make_node("Shape", ["input_ids"], ["lengths"], start=1, end=2),
        helper.make_node("Slice", ["positions", "zero", "lengths"], ["placed"]),
        helper.make_node("Add", ["looked_up", "placed"], ["states"]),
        *(helper.make_node("MatMul", ["states", name], [f"{name}_of"]) for name in ("query", "key", "value")),
        helper.make_node("Transpose", ["key_of"], ["key_turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["query_of", "key_turned"], ["scores"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "one"], ["mask_of_keys"]),
        helper.make_node("Sub", ["mask_of_keys", "unit"], ["lacking"]),
        helper.make_node("Mul", ["lacking", "far"], ["penalty"]),
        helper.make_node("Add", ["scores", "penalty"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "value_of"], ["attended"]),
        helper.make_node("Add", ["states", "attended"], ["hidden"]),
    ]
    sizes: list[Any] = ["texts", "tokens", WIDTH]
    if output == "sentence_embedding":
        nodes.append(helper.make_node("ReduceMean", ["hidden"], [output], axes=[1], keepdims=0))
        sizes = ["texts", WIDTH]
    else:
        nodes.append(helper.make_node("Identity", ["hidden"], [output]))
    held = {**weights, "zero": np.array([0]), "one": np.array([1]), "unit": np.float32(1), "far": np.float32(1e9)}
    graph = helper.make_graph(
        nodes,
        "bert",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"])
            for name in ("input_ids", "attention_mask", *more)
        ],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, sizes)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def write_tokenizer(path: Path, words: tuple[str, ...] = VOCABULARY) -> Path:
    """Words in any case, parted by blanks. It is set to cut off and fill up, as those of the hub often are."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=_UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = [(_FIRST, words.index(_FIRST)), (_LAST, words.index(_LAST))]
    tokenizer.post_processor = processors.TemplateProcessing(f"{_FIRST} $A {_LAST}", None, marks)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=LONGEST)
    tokenizer.save(str(path))
    return path


def write_folder(
    root: Path, pooling: str = "mean_tokens", weights: Weights | None = None, longest: int = LONGEST
) -> Path:
    """A folder as sentence-transformers saves it, with an ONNX file. `pooling`: by the library's older names."""
    root.mkdir(parents=True, exist_ok=True)
    write_onnx(root / "onnx" / "model.onnx", weights or make_weights())
    write_tokenizer(root / "tokenizer.json")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    write_json(root / "modules.json", modules)
    write_json(root / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    write_json(root / "config.json", {"hidden_size": WIDTH, "max_position_embeddings": LONGEST})
    modes = {
        f"pooling_mode_{name}": name == pooling for name in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    }
    write_json(root / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH, **modes})
    return root


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))
