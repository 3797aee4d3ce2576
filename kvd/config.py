"""Settings: defaults, the user's `config.toml`, a repository's `.kvd.toml`, the environment; the later goes first.

Flags go before all of them. Those settings that are about one request count in the environment of the command that
sends it, and come with it; the others count in that of the daemon.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from kvd import paths
from kvd.errors import UsageError
from kvd.regular import MOST_BYTES, read_small

DEFAULT_EMBEDDER = "default"

REPOSITORY_FILE = ".kvd.toml"
PREFIX = "KVD_"

_MOST_REPOSITORY_BYTES = 4_096
"""Of a repository's file: anybody may have written it, and it is read at each question. The worst that fits, one key of
thousands of parts, takes a tenth of a second."""

_LARGEST = 1 << 40
_SHOWN = 60
"""Characters of a wrong key or value in the error about it."""


def _setting(
    default: Any,
    meaning: str,
    low: int = 0,
    high: int = _LARGEST,
    choices: tuple[str, ...] = (),
    request: bool = False,
    repository: str = "",
) -> Any:
    """A field of `Settings`. Numbers are between `low` and `high`.

    `request`: it is about one request, so that it counts in the environment of whoever sends it. `repository`: whether
    a `.kvd.toml` may set it: "" for no, "yes", or "less" if not above what it is otherwise. Whoever wrote a repository
    must not choose models, paths, memory, disk or what is secret.
    """
    rule = {"meaning": meaning, "low": low, "high": high, "choices": choices, "request": request}
    return field(default=default, metadata={**rule, "repository": repository})


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, with its default. Each is a top-level key of `config.toml`."""

    n_ctx: int = _setting(
        8192,
        "Cells of the model's context, which all questions that are answered at the same time share.",
        low=1024,
        high=1 << 20,
    )
    parallel: int = _setting(
        4, "Most questions answered at the same time, as far as their cells allow.", low=1, high=32
    )
    budget: int = _setting(
        2048,
        "Tokens of code that a question may recall.",
        low=64,
        high=10_000_000,
        request=True,
        repository="yes",
    )
    top_k: int = _setting(8, "Chunks that a question may recall.", low=1, high=200, request=True, repository="yes")
    max_tokens: int = _setting(512, "Longest answer in tokens.", low=1, high=1_000_000, request=True, repository="yes")
    threads: int = _setting(0, "Threads of the engine; 0: as many as there are physical cores.", high=512)
    gpu_layers: int = _setting(
        -1,
        "Layers on the GPU where the llama.cpp build has one, the output counting as one; -1: as many as fit.",
        low=-1,
        high=1000,
    )
    reuse: bool = _setting(True, "Use stored KV; false computes every prompt afresh.", request=True)
    recompute: int = _setting(
        -1,
        "Tokens at the start of each recalled body that are computed afresh; -1: the model's own choice.",
        low=-1,
        high=64,
    )
    short_headers: bool = _setting(
        False, "Tell the model a chunk's number alone, not its place and scope: the answer starts sooner and is poorer."
    )
    resident_prompts: int = _setting(
        8,
        "Prompts that may stay in the model's cells, for questions that recall the same code in the same order.",
        high=8,
    )
    rerank_ms: int = _setting(
        0,
        "Milliseconds that the model may take to judge what was recalled before it answers; 0: it is not asked to.",
        high=3_600_000,
        request=True,
    )
    rounds: int = _setting(
        0,
        "How often the model may fetch more code before it answers, by a search or a file's lines; 0: not at all.",
        high=4,
        request=True,
    )
    eviction: str = _setting(
        "combined",
        "What leaves the hot pool first: lru (unused for longest), semantic (unlike recent questions) or combined.",
        choices=("lru", "semantic", "combined"),
    )
    pool_bytes: int = _setting(
        0, "Hard cap of the hot pool; 0: an eighth of the free memory, at most 2 GB, at least one full context."
    )
    store_bytes: int = _setting(8_000_000_000, "Hard cap of all that the cold store has on disk.")
    idle_minutes: int = _setting(30, "The model is unloaded after so long without a question; 0: never.")
    daemon_idle_minutes: int = _setting(
        120, "The daemon ends after so long without a client; the next command starts it again. 0: never."
    )
    session_days: int = _setting(
        365, "Sessions are deleted for good when nobody asked anything in them for so many days; 0: never.", high=36_500
    )
    memory: bool = _setting(
        True,
        "Turns of earlier conversations about the repository that bear on a question are recalled into others.",
        request=True,
        repository="less",
    )
    embedder: str = _setting(
        DEFAULT_EMBEDDER,
        "What makes vectors of code and questions: default, or the path of an embedding model: GGUF, ONNX, or a folder "
        "of sentence-transformers.",
    )
    not_secret: str = _setting(
        "",
        "Files that only look like secrets, as patterns of .gitignore with blanks between: tests/certs/ *.example.pem",
    )
    max_file_bytes: int = _setting(1_000_000, "Larger files are not indexed.", repository="less")
    folder_files: int = _setting(
        20_000, "Most files of a folder without git; one with more is not indexed.", high=200_000, repository="less"
    )
    watch: bool = _setting(
        True, "Index what changes in the repositories in use before the next question comes.", repository="less"
    )


FIELDS: dict[str, Field[Any]] = {found.name: found for found in fields(Settings)}
"""By name, in the order of the documents; `metadata` is as `_setting` makes it."""

_KINDS = {int: "a whole number", bool: "true or false", str: "text"}
_TRUTHS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Found:
    """A setting's value and where it is from: `source` is "default", "user", "repository" or "environment", and
    `where` the file with its line, or the variable."""

    value: Any
    source: str = "default"
    where: str = ""


def bounds(name: str) -> tuple[int, int]:
    """Least and most of a number."""
    rule = FIELDS[name].metadata
    return rule["low"], rule["high"]


def known(name: str) -> str:
    """`name` if there is such a setting, else `UsageError`."""
    if name not in FIELDS:
        raise UsageError(f"there is no setting {shown(name)}", hint=f"known: {', '.join(FIELDS)}")
    return name


def fault_of(name: str, value: Any) -> str:
    """What is wrong with a value, as it follows the setting's name in an error; "" for nothing."""
    rule, kind = FIELDS[name].metadata, type(FIELDS[name].default)
    # `type(...)`, not isinstance: true is an int to Python.
    if type(value) is not kind:
        return f"must be {_KINDS[kind]}, not {shown(value)}"
    if kind is int and not rule["low"] <= value <= rule["high"]:
        return f"must be between {rule['low']} and {rule['high']}, not {shown(value)}"
    if rule["choices"] and value not in rule["choices"]:
        return f"must be one of {', '.join(rule['choices'])}, not {shown(value)}"
    return ""


def parsed(name: str, text: str, variable: str = "") -> Any:
    """The value that `text` stands for, read by the setting's type. Raises `UsageError` that names the variable."""
    kind: type = type(FIELDS[name].default)
    value: Any = text
    if kind is bool:
        value = _TRUTHS.get(text.strip().lower(), text)
    elif kind is int and re.fullmatch(r"[+-]?[0-9][0-9_]{0,30}", text.strip()):
        value = int(text.strip().replace("_", ""))
    if fault := fault_of(name, value):
        hint = f"unset {variable}" if variable else f"kvd config set {name} {written(FIELDS[name].default)}"
        raise UsageError(f"{variable or name} {fault}", hint=hint)
    return value


def written(value: Any) -> str:
    """A value as people type it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown(value: Any) -> str:
    """A wrong key or value, cut to what fits a line."""
    try:
        text = repr(value)
    except ValueError:
        # Python writes no number of so many digits; TOML may have them in hexadecimal.
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def load_settings(root: Path | None = None) -> Settings:
    """The settings of this process, for the repository at `root` if one is given.

    Those that are about one request are here without the environment. A missing file means the defaults.
    Raises `UsageError` for a file that can't be read or is not TOML, an unknown key or a wrong value.
    """
    return Settings(**{name: found.value for name, found in gather(root, environment(request=False)).items()})


def gather(root: Path | None, variables: Mapping[str, Found]) -> dict[str, Found]:
    """Each setting with where it is from, `variables` going first. Raises as `load_settings`."""
    result = {name: Found(found.default) for name, found in FIELDS.items()}
    result |= _from_file(paths.config_file(), MOST_BYTES)
    if root is not None:
        for name, found in _from_file(root / REPOSITORY_FILE, _MOST_REPOSITORY_BYTES, of_repository=True).items():
            if FIELDS[name].metadata["repository"] != "less" or found.value < result[name].value:
                result[name] = found
    return {**result, **variables}


def environment(*, request: bool) -> dict[str, Found]:
    """What this process's environment sets, of the settings that are about one request or of the others.

    An empty variable counts as none. Raises `UsageError` that names the variable.
    """
    result = {}
    for name, rule in FIELDS.items():
        variable = PREFIX + name.upper()
        text = os.environ.get(variable, "")
        if text and rule.metadata["request"] == request:
            result[name] = Found(parsed(name, text, variable), "environment", variable)
    return result


def process_environment() -> dict[str, Any]:
    """Values of the settings that this process's environment sets and that are not about one request; none if one of
    them is wrong, as `load_settings` will say."""
    try:
        return {name: found.value for name, found in environment(request=False).items()}
    except UsageError:
        return {}


def _from_file(file: Path, most: int, of_repository: bool = False) -> dict[str, Found]:
    text = _read(file, most, of_repository)
    result = {}
    for name, value in parse_toml(file, text).items():
        where = _place(file, text, name)
        if fault := _fault_in_file(name, value, of_repository):
            unset = not of_repository and re.fullmatch(r"[\w-]+", name, re.ASCII)
            raise UsageError(f"{where}: {fault}", hint=f"kvd config unset {name}" if unset else f"edit {file}")
        result[name] = Found(value, "repository" if of_repository else "user", where)
    return result


def _fault_in_file(name: str, value: Any, of_repository: bool) -> str:
    if name not in FIELDS:
        return f"there is no setting {shown(name)}"
    if of_repository and not FIELDS[name].metadata["repository"]:
        return f"a repository can't set {name}, only you can: kvd config set {name} VALUE"
    fault = fault_of(name, value)
    return f"{name} {fault}" if fault else ""


def _read(file: Path, most: int, of_repository: bool) -> str:
    try:
        # A repository's link could lead anywhere.
        return read_small(file, most, follow=not of_repository).decode("utf-8")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"can't read {file}: {error.strerror}", hint=f"make {file} readable, or remove it") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{file}:{line}: not UTF-8", hint=f"edit {file}") from error


def parse_toml(file: Path, text: str) -> dict[str, Any]:
    """The table in `text`, which is the content of `file`. Raises `UsageError` with the line."""
    import tomllib

    try:
        return tomllib.loads(text)
    except ValueError as error:
        line = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        number = f":{line[1] or text.count(chr(10)) + 1}" if line else ""
        message = str(error)[: line.start()] if line else str(error)
        raise UsageError(f"{file}{number}: {message}", hint=f"edit {file}") from error
    except RecursionError:
        raise UsageError(f"{file}: it is nested too deeply", hint=f"edit {file}") from None


def _place(file: Path, text: str, name: str) -> str:
    """`file:line` of a key; the file alone where the key is written with escapes."""
    pattern = re.compile(rf"""[ \t]*(?:\[+[ \t]*)?(["']?){re.escape(name)}\1[ \t]*[=.\]]""")
    line = next((number for number, line in enumerate(text.split("\n"), 1) if pattern.match(line)), None)
    return f"{file}:{line}" if line else str(file)
