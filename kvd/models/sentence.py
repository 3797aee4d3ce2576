"""A folder as the library sentence-transformers saves a model: what its small files say of it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kvd.errors import ModelError
from kvd.regular import read_json

MODULES = "modules.json"
CONFIGS = ("config.json", "sentence_bert_config.json", "tokenizer_config.json")
"""In the folder of a transformer; what of a text counts is in one of them."""

_ROOT_CONFIG = "config_sentence_transformers.json"
_LIBRARY = "sentence_transformers."
_KINDS = ("Transformer", "StaticEmbedding", "Pooling", "Dense", "Normalize", "Dropout")
_DEFAULT_LONGEST = 512
_LARGEST_HEADER = 1 << 20
_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""How versions of the library before 6 write what is `pooling_mode` now."""


@dataclass(frozen=True, slots=True)
class Module:
    """A step from text to vector: its class in the library, and its folder."""

    kind: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a text's vector comes from its tokens'. `modes` by the library's names, their vectors one after the other;
    `width` of a token's vector, 0 where it is not said; `prompt`: whether a prompt's tokens count."""

    modes: tuple[str, ...]
    width: int
    prompt: bool


def read_modules(root: Path) -> tuple[Module, ...]:
    """In the order in which they are applied. Raises `ModelError` for another kind of folder, and for modules that
    would run code of the model's, or that kvd does not know."""
    if not (root / MODULES).exists():
        raise ModelError(_why_not(root))
    modules = []
    for entry in _read(root / MODULES, list):
        name, place = (str(entry.get(key, "")) if isinstance(entry, dict) else "" for key in ("type", "path"))
        kind = name.rpartition(".")[2]
        if not name.startswith(_LIBRARY) or kind not in _KINDS:
            raise ModelError(f"{root} wants the module {name or '?'}, which kvd does not run")
        parts = PurePosixPath(place)
        if parts.is_absolute() or ".." in parts.parts:
            raise ModelError(f"{root} wants a module from outside it: {place}")
        modules.append(Module(kind, root / place))
    if not modules or modules[0].kind not in ("Transformer", "StaticEmbedding"):
        raise ModelError(f"{root / MODULES} does not begin with a transformer")
    return tuple(modules)


def _why_not(root: Path) -> str:
    architectures = read_object(root / "config.json").get("architectures")
    named = " ".join(map(str, architectures)) if isinstance(architectures, list) else ""
    if "ForCausalLM" in named or "ForConditionalGeneration" in named:
        return f"{root} is a model that writes text ({named}): it makes no vectors"
    return f"{root} does not say how its vectors are pooled: it has no {MODULES}"


def read_pooling(module: Module) -> Pooling:
    """What the configuration of a module of the kind `Pooling` says."""
    config = read_object(module.folder / "config.json")
    if not config:
        raise ModelError(f"{module.folder / 'config.json'} is missing: how vectors are pooled is not known")
    said = config.get("pooling_mode", [mode for key, mode in _POOLINGS.items() if config.get(key) is True] or "mean")
    modes = tuple(map(str, said)) if isinstance(said, list) else (str(said),)
    width = number(config, "embedding_dimension") or number(config, "word_embedding_dimension")
    return Pooling(modes, width, config.get("include_prompt") is not False)


def longest(transformer: Path) -> int:
    """Tokens of a text that count, by the configuration of the folder of a transformer."""
    config, sentence, tokenizer = (read_object(transformer / name) for name in CONFIGS)
    limits = number(tokenizer, "model_max_length"), number(config, "max_position_embeddings")
    return number(sentence, "max_seq_length") or min(filter(None, limits), default=_DEFAULT_LONGEST)


def lowercase(transformer: Path) -> bool:
    """Whether texts are made lower case before their tokens are looked up."""
    return read_object(transformer / CONFIGS[1]).get("do_lower_case") is True


def prompts(root: Path) -> tuple[str, str]:
    """What stands before a question, and before a document."""
    config = read_object(root / _ROOT_CONFIG)
    held = config.get("prompts")
    known = {str(name): str(text) for name, text in held.items() if text} if isinstance(held, dict) else {}
    default = known.get(str(config.get("default_prompt_name")), "")
    document = next((known[name] for name in ("document", "passage", "corpus") if name in known), default)
    return known.get("query", default), document


def static_width(module: Module) -> int:
    """The dimension of a table of token vectors, from the header of its weights."""
    path = module.folder / "model.safetensors"
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, _LARGEST_HEADER)))
        shapes = [entry["shape"] for name, entry in header.items() if name in ("embedding.weight", "embeddings")]
        return int(shapes[0][1])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is no table of vectors: {type(error).__name__}") from error


def number(config: dict[str, Any], key: str) -> int:
    """A whole number above 0, else 0."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def read_object(path: Path) -> dict[str, Any]:
    """A small JSON file; empty where there is none. Raises `ModelError` for one that can't be used."""
    if not os.path.lexists(path):
        return {}
    found: dict[str, Any] = _read(path, dict)
    return found


def _read(path: Path, kind: type) -> Any:
    try:
        found = read_json(path)
    except OSError as error:
        raise ModelError(f"can't read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"can't read {path}: it is no JSON") from error
    if not isinstance(found, kind):
        raise ModelError(f"can't read {path}: it holds something else")
    return found
