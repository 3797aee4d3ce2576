"""The archives that `packages.txt` names, from the Python, npm and Debian package registries.

Only their ordinary clients are used, and nothing is built, installed or run: wheels, not source distributions, whose
metadata would have to be computed by their own code.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PACKAGES = Path(__file__).resolve().parent / "packages.txt"
HELD = "held"


@dataclass(frozen=True, slots=True)
class Package:
    """`registry` is `pypi`, `npm`, `source` (Debian's source packages) or `deb` (its binary ones)."""

    registry: str
    name: str
    version: str
    archive: str
    held: bool
    """Kept out of training, for evaluation."""


def packages() -> list[Package]:
    """What is trained and evaluated with."""
    lines = (line.split() for line in PACKAGES.read_text("utf-8").splitlines() if not line.startswith("#"))
    return [Package(words[0], words[1], words[2], words[3], HELD in words[4:]) for words in lines]


def fetch(target: Path, say: Callable[[str], None]) -> None:
    """Put the archives that are not there yet into `target`, one after the other; what can't be had is told."""
    target.mkdir(parents=True, exist_ok=True)
    for package in packages():
        if not (target / package.archive).exists():
            done = subprocess.run(_command(package), cwd=target, capture_output=True, text=True, check=False)
            if not (target / package.archive).exists():
                reason = (done.stderr.strip().splitlines() or ["no such file came"])[-1]
                say(f"left out: {package.name} {package.version}: {reason}")


def _command(package: Package) -> list[str]:
    pinned = f"{package.name}={package.version}"
    match package.registry:
        case "pypi":
            return ["pip", "download", "-q", "--no-deps", "--only-binary=:all:", f"{package.name}=={package.version}"]
        case "npm":
            return ["npm", "pack", "--silent", "--ignore-scripts", f"{package.name}@{package.version}"]
        case "source":
            return ["apt-get", "source", "-qq", "--download-only", pinned]
        case _:
            return ["apt-get", "download", "-qq", pinned]
