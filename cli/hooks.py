"""`kvd hooks`: git tells kvd of commits, checkouts, merges and rebases."""

from __future__ import annotations

import json
from typing import Any

import typer

from .repository_commands import Json, Repo, absolute
from .text import clean_line

app = typer.Typer()

_OWNERS = {"kvd": "kvd", "other": "someone else's", "none": "none"}


@app.callback()
def _hooks() -> None:
    """Let git tell kvd of commits, checkouts, merges and rebases."""


@app.command()
def install(repo: Repo = None, as_json: Json = False) -> None:
    """Install the hooks; those that are there go on running first.

    They bring the index up to date in the background. KVD_HOOKS=0 in the environment turns them off.
    """
    from kvd.hooks import states
    from kvd.hooks.repository import find_repository

    found = find_repository(absolute(repo or "."))
    states.install(found)
    _tell(states.status(found), as_json)


@app.command()
def status(repo: Repo = None, as_json: Json = False) -> None:
    """Which hooks there are, whose, and whether git runs them."""
    from kvd.hooks import states
    from kvd.hooks.repository import find_repository

    _tell(states.status(find_repository(absolute(repo or "."))), as_json)


@app.command()
def uninstall(repo: Repo = None, as_json: Json = False) -> None:
    """Remove the hooks, and put back what was there before."""
    from kvd.hooks import states
    from kvd.hooks.repository import find_repository

    found = find_repository(absolute(repo or "."))
    states.uninstall(found)
    _tell(states.status(found), as_json)


@app.command(hidden=True)
def run() -> None:
    """What the hooks do: have the index of this repository brought up to date, if there is one."""
    from kvd.hooks.handover import hand_over

    hand_over()


def _tell(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found))
        return
    way = "hooks in git's configuration" if found["method"] == "config" else f"hook files in {found['folder']}"
    typer.echo(clean_line(f"{found['repo']}: git {found['git']}, {way}"))
    for hook in found["hooks"]:
        typer.echo(clean_line(f"{hook['event']:<14} {_words(hook)}"))
    for note in found["notes"]:
        typer.echo(clean_line(f"note: {note}"))


def _words(hook: dict[str, Any]) -> str:
    words = _OWNERS[hook["owner"]]
    if hook["owner"] == "none":
        return words
    words += f", {hook['place']}"
    if hook["before"]:
        words += f", after {hook['before']}"
    if hook["why"]:
        words += f": {hook['why']}" if hook["runs"] else f", NOT RUN: {hook['why']}"
    return words
