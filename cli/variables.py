"""What the environment of a command does to its request."""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import Any

import typer

from kvd.config import FIELDS, PREFIX, environment, written

_OTHERS = ("KVD_HOOKS",)
"""Variables that are no settings."""


def with_environment(params: dict[str, Any]) -> dict[str, Any]:
    """`params` with what the environment sets of those that are None.

    Raises `UsageError` for any variable with a wrong value, also for those that a new daemon would get.
    """
    for line in unknown():
        typer.echo(f"kvd: {line}", err=True)
    environment(request=False)
    found = environment(request=True)
    return params | {name: found[name].value for name in found if params.get(name, 0) is None}


def unknown() -> list[str]:
    """Of the variables that look like kvd's: those that mean nothing."""
    names = [PREFIX + name.upper() for name in FIELDS]
    strange = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in (*names, *_OTHERS))
    return [f"there is no setting {name}{_instead(name, names)}" for name in strange]


def _instead(name: str, names: list[str]) -> str:
    near = get_close_matches(name, names, n=1)
    return f": did you mean {near[0]}?" if near else " (known: kvd config)"


def unreached(server: dict[str, Any]) -> list[str]:
    """Of the variables that count in the daemon's environment: those that it was not started with."""
    theirs = server.get("environment", {})
    return [
        f"{found.where}={written(found.value)} does not reach the daemon that runs"
        f" (kvd stop ends it; for good: kvd config set {name} {written(found.value)})"
        for name, found in environment(request=False).items()
        if theirs.get(name) != found.value
    ]


def tell_unreached(server: dict[str, Any]) -> None:
    for line in unreached(server):
        typer.echo(f"kvd: {line}", err=True)
