"""`kvd notes`: what is to be kept in mind about a repository."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from kvd.rpc.messages import check_text

from .repository_commands import Json, Repo, absolute, call
from .text import clean_line

app = typer.Typer()


@app.callback()
def _notes() -> None:
    """Notes about a repository, which the model has before it in all conversations."""


@app.command()
def add(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="In quotes.")], repo: Repo = None, as_json: Json = False
) -> None:
    """Note something that holds for the repository."""
    note = call("note/add", {"repo": absolute(repo or "."), "text": check_text("note", text)})
    typer.echo(json.dumps(note) if as_json else note_line(note))


@app.command("list")
def list_all(repo: Repo = None, as_json: Json = False) -> None:
    """The notes about a repository, with their numbers."""
    result = call("note/list", {"repo": absolute(repo or ".")})
    if as_json:
        typer.echo(json.dumps(result))
    else:
        for line in note_lines(result):
            typer.echo(line)


@app.command()
def delete(
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1)], repo: Repo = None, as_json: Json = False
) -> None:
    """Delete a note for good."""
    result = call("note/delete", {"repo": absolute(repo or "."), "number": number})
    typer.echo(json.dumps(result) if as_json else f"note {number} is deleted")


def note_lines(result: dict[str, Any]) -> list[str]:
    """The result of `note/list` as text."""
    return [note_line(note) for note in result["notes"]] or ["no notes yet"]


def note_line(note: dict[str, Any]) -> str:
    return f"{note['number']}  {clean_line(note['text'])}"
