"""Embedding models that the setting `embedder` may name: which of their files count, and who computes with them.

A GGUF file is for llama.cpp, an ONNX file for onnxruntime; a folder of sentence-transformers that has no ONNX file, or
does more than that can, is for the library itself. No weights are read here but for their hash, and pickled ones are
refused: to unpickle is to run what is in the file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvd.errors import KvdError, ModelError
from kvd.models import sentence
from kvd.models.files import hash_file
from kvd.models.gguf import check_gguf, embedding_width
from kvd.models.onnx import OnnxHead, read_onnx
from kvd.models.sentence import Module, Pooling

GGUF, ONNX, LIBRARY = "gguf", "onnx", "sentence-transformers"

_EXTRAS = {ONNX: ("onnxruntime", "tokenizers"), LIBRARY: ("sentence_transformers",)}
"""What of kvd's optional packages each kind needs; the extra has the kind's name."""

_INPUTS = {"input_ids", "attention_mask", "token_type_ids", "position_ids"}
_TOKENIZER = "tokenizer"
_SENTENCE = "sentence_embedding"
_TOKENS = ("last_hidden_state", "token_embeddings")
_POOLINGS = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last", "mean_sqrt_len_tokens": "mean"}
"""Those that kvd computes itself; where all vectors get length 1, a sum over the root of the length is a mean."""
_DONE = ("Transformer", "Pooling", "Normalize", "Dropout")
"""Modules that are in an ONNX file, or done here, or nothing once a model is trained."""

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_READ = ("*.json", "*.txt", "*.model", "*.safetensors")
"""What the library may read of a folder."""


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """`files`: what its vectors depend on, by names that do not change when the folder is moved. `settings`: on what
    else they depend; the child that computes gets these. `watched`: where another file makes another model."""

    kind: str
    path: Path
    dimension: int
    files: tuple[tuple[str, Path], ...]
    settings: dict[str, Any]
    prompts: tuple[str, str] = ("", "")
    """Before a question, and before a document."""
    watched: tuple[Path, ...] = ()

    @property
    def about(self) -> str:
        """What it is, in a few words."""
        pooled = self.settings.get("pooling")
        return f"{self.kind}, {pooled} of its tokens" if pooled else self.kind

    def request(self) -> dict[str, Any]:
        """What the child is told to load it."""
        tokenizer = dict(self.files).get(_TOKENIZER)
        more = {_TOKENIZER: str(tokenizer)} if tokenizer is not None else {}
        return {"kind": self.kind, "path": str(self.path), "dimension": self.dimension, **self.settings, **more}

    def sha256(self) -> str:
        """Of all that its vectors depend on. Reads the files whole; raises `OSError`."""
        if self.kind == GGUF:
            return hash_file(self.path)
        said = [self.dimension, self.settings, self.prompts]
        digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
        for name, path in self.files:
            digest.update(f"\0{name}\0{hash_file(path)}".encode())
        return digest.hexdigest()


def read_embedding_model(path: Path) -> EmbeddingModel:
    """Raises `ModelError`; its hint is empty where only another file helps."""
    if path.is_dir():
        return _folder(path)
    if path.suffix.lower() == ".onnx" and path.is_file():
        return _first_installed([_onnx_file(path)])
    try:
        check_gguf(path)
        return EmbeddingModel(GGUF, path, embedding_width(path), ((path.name, path),), {}, watched=(path,))
    except KvdError as error:
        raise ModelError(error.message) from error


def _first_installed(models: Sequence[EmbeddingModel]) -> EmbeddingModel:
    for model in models:
        if not _lacking(model.kind):
            return model
    kind = models[0].kind
    names = " and ".join(name.replace("_", "-") for name in _lacking(kind))
    raise ModelError(f"{models[0].path} needs {names}, not installed", hint=f"pip install 'kvd[{kind}]'")


def _lacking(kind: str) -> list[str]:
    return [name for name in _EXTRAS.get(kind, ()) if importlib.util.find_spec(name) is None]


def _folder(root: Path) -> EmbeddingModel:
    """Computed by onnxruntime, where it can be and that is installed, else by the library."""
    modules = sentence.read_modules(root)
    onnx = _onnx_of(modules[0])
    ways: list[Callable[[], EmbeddingModel]] = [lambda: _library(root, modules)]
    if onnx is not None:
        ways.insert(0, lambda: _onnx(onnx, root, modules))
    models, faults = [], []
    for way in ways:
        try:
            models.append(way())
        except ModelError as error:
            faults.append(error)
    if not models:
        raise faults[0]
    return _first_installed(models)


def _onnx_of(transformer: Module) -> Path | None:
    """The ONNX file of a folder; several are a choice that only its user can make."""
    for folder in (transformer.folder / "onnx", transformer.folder):
        if (folder / "model.onnx").is_file():
            return folder / "model.onnx"
        found = [file for file in sorted(folder.glob("*.onnx")) if file.is_file()]
        if len(found) > 1:
            raise ModelError(f"{folder} has several ONNX files: name one of them as the embedder, as {found[0]}")
        if found:
            return found[0]
    return None


def _onnx_file(path: Path) -> EmbeddingModel:
    """A file that is named itself; what is around it may be a folder of sentence-transformers."""
    around = path.parent
    if around.name == "onnx" and not (around / "tokenizer.json").exists():
        around = around.parent
    return _onnx(path, around, sentence.read_modules(around) if (around / sentence.MODULES).exists() else ())


def _onnx(path: Path, root: Path, modules: tuple[Module, ...]) -> EmbeddingModel:
    head = read_onnx(path)
    transformer = modules[0].folder if modules else root
    tokenizer = next(
        (f / "tokenizer.json" for f in (path.parent, transformer) if (f / "tokenizer.json").exists()), None
    )
    if tokenizer is None:
        raise ModelError(f"{path} has no tokenizer.json beside it")
    _check_inputs(path, head)
    output, pooling, width = _output(path, head, modules)
    width = width or sentence.number(sentence.read_object(transformer / "config.json"), "hidden_size")
    if not width:
        raise ModelError(f"{path} does not say how wide its vectors are")
    settings = {
        "output": output,
        "pooling": pooling,
        "longest": sentence.longest(transformer),
        "lowercase": sentence.lowercase(transformer),
    }
    weights = (path, *head.beside)
    files = (("model", path), *((file.relative_to(path.parent).as_posix(), file) for file in head.beside))
    return EmbeddingModel(
        ONNX,
        path,
        width,
        (*files, (_TOKENIZER, tokenizer)),
        settings,
        sentence.prompts(root),
        _watched((*weights, tokenizer, *_configs(root, transformer, modules))),
    )


def _check_inputs(path: Path, head: OnnxHead) -> None:
    other = [name for name in head.inputs if name not in _INPUTS]
    if other or "input_ids" not in head.inputs:
        takes = other[0] if other else "no tokens"
        raise ModelError(f"{path} is no embedding model: it takes {takes}")


def _output(path: Path, head: OnnxHead, modules: tuple[Module, ...]) -> tuple[str, str, int]:
    """Which output is used, how it is pooled ("" where it is a text's vector already), and the width of a vector."""
    tokens = _token_output(head)
    poolings = [sentence.read_pooling(module) for module in modules if module.kind == "Pooling"]
    pooling = poolings[0] if poolings else Pooling(("mean",), 0, True)
    undone = [module.kind for module in modules if module.kind not in _DONE]
    undone += [mode for mode in pooling.modes if mode not in _POOLINGS]
    undone += ["several poolings"] * (len(poolings) > 1 or len(pooling.modes) > 1)
    undone += ["no pooling"] * bool(modules and not poolings)
    undone += ["pooling without the prompt"] * (not pooling.prompt)
    if tokens and not undone:
        return tokens, _POOLINGS[pooling.modes[0]], _last_size(head, tokens) or pooling.width
    if _SENTENCE in head.outputs:
        return _SENTENCE, "", _last_size(head, _SENTENCE)
    if not tokens:
        raise ModelError(f"{path} is no embedding model: it gives {', '.join(head.outputs)}")
    raise ModelError(f"{path} leaves to others what kvd does not do: {', '.join(undone)}")


def _token_output(head: OnnxHead) -> str:
    """The output with a vector for each token: [texts, tokens, width]."""
    named = [name for name in _TOKENS if name in head.outputs]
    others = [name for name, sizes in head.outputs.items() if len(sizes) == 3 and name != "logits"]
    return next(iter(named + others), "")


def _last_size(head: OnnxHead, output: str) -> int:
    return next(reversed(head.outputs[output]), 0)


def _library(root: Path, modules: tuple[Module, ...]) -> EmbeddingModel:
    for module in modules:
        _check_weights(module)
    width = 0
    for module in modules:
        if module.kind == "StaticEmbedding":
            width = sentence.static_width(module)
        elif module.kind == "Pooling":
            pooling = sentence.read_pooling(module)
            width = len(pooling.modes) * pooling.width
            if not pooling.prompt and any(sentence.prompts(root)):
                raise ModelError(f"{root} pools without its prompt, which kvd does not do")
        elif module.kind == "Dense":
            width = sentence.number(sentence.read_object(module.folder / "config.json"), "out_features")
    if not width:
        raise ModelError(f"{root} does not say how wide its vectors are")
    folders = dict.fromkeys([root, *(module.folder for module in modules)])
    read = sorted({file for folder in folders for pattern in _READ for file in folder.glob(pattern) if file.is_file()})
    files = tuple((file.relative_to(root).as_posix(), file) for file in read)
    return EmbeddingModel(LIBRARY, root, width, files, {}, sentence.prompts(root), _watched(tuple(read)))


def _check_weights(module: Module) -> None:
    folder = module.folder
    if (folder / "adapter_config.json").exists():
        raise ModelError(f"{folder} is an adapter to another model: merge the two first")
    if any((folder / name).is_file() for name in _WEIGHTS):
        return
    pickled = next((file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern)), "")
    if pickled:
        raise ModelError(f"{folder} has its weights pickled ({pickled}), which can run code: kvd does not read that")
    if module.kind in ("Transformer", "StaticEmbedding", "Dense"):
        raise ModelError(f"{folder} has no weights that kvd reads: no model.safetensors, and no model.onnx")


def _configs(root: Path, transformer: Path, modules: tuple[Module, ...]) -> tuple[Path, ...]:
    names = [transformer / name for name in sentence.CONFIGS]
    names += [root / sentence.MODULES, root / "config_sentence_transformers.json"]
    names += [module.folder / "config.json" for module in modules if module.kind == "Pooling"]
    return tuple(name for name in names if name.exists())


def _watched(files: tuple[Path, ...]) -> tuple[Path, ...]:
    """With their folders, whose times tell of files that come."""
    return (*files, *dict.fromkeys(file.parent for file in files))
