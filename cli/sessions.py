"""`kvd sessions`: conversations that are kept."""

from __future__ import annotations

import datetime
import json
from typing import Annotated, Any

import typer

from kvd.rpc.messages import LIMIT, check_text

from .answers import memory_line
from .repository_commands import Json, Repo, absolute, call
from .text import clean, clean_line, counted

app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="NAME")]


@app.callback()
def _sessions() -> None:
    """Conversations about a repository: kvd ask --session NAME, kvd chat."""


@app.command("list")
def list_all(repo: Repo = None, as_json: Json = False) -> None:
    """The conversations about a repository, the last used first."""
    result = call("session/list", {"repo": absolute(repo or ".")})
    if as_json:
        typer.echo(json.dumps(result))
    elif not result["sessions"]:
        typer.echo("no sessions yet: kvd chat begins one")
    else:
        for session in result["sessions"]:
            typer.echo(_line(session))


@app.command()
def show(name: Name, repo: Repo = None, as_json: Json = False) -> None:
    """What was said in a conversation."""
    result = call("session/show", _named(name, repo))
    if as_json:
        typer.echo(json.dumps(result))
        return
    for turn in result["turns"]:
        typer.echo(f"> {clean_line(turn['question'])}\n\n{clean(turn['answer']).strip()}\n")


@app.command()
def search(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help='In quotes; also with a time: "retries last week", "on Monday".')
    ],
    repo: Repo = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=LIMIT[0], max=LIMIT[1], help="Show at most N turns.")
    ] = 5,
    as_json: Json = False,
) -> None:
    """Find what was said before about a repository, in all conversations."""
    params = {"query": check_text("query", query), "repo": absolute(repo or "."), "limit": limit}
    result = call("session/search", params)
    if as_json:
        typer.echo(json.dumps(result))
    elif not result["results"]:
        typer.echo("nothing found")
    for found in [] if as_json else result["results"]:
        typer.echo(f"{memory_line(found)}\n> {clean_line(found['question'])}\n{clean(found['answer']).strip()}\n")


@app.command()
def fork(
    name: Name,
    new_name: Annotated[str | None, typer.Argument(metavar="[NEW_NAME]")] = None,
    repo: Repo = None,
    as_json: Json = False,
) -> None:
    """Begin another conversation with what was said in this one so far."""
    result = call("session/fork", {**_named(name, repo), "new_name": new_name})
    _tell(result, f"{clean_line(result['name'])} goes on from here", as_json)


@app.command()
def close(name: Name, repo: Repo = None, as_json: Json = False) -> None:
    """Free the memory that a conversation takes; it can be gone on with at any time."""
    _tell(call("session/close", _named(name, repo)), f"{name} is closed", as_json)


@app.command()
def delete(name: Name, repo: Repo = None, as_json: Json = False) -> None:
    """Delete a conversation for good."""
    _tell(call("session/delete", _named(name, repo)), f"{name} is deleted", as_json)


def _named(name: str, repo: str | None) -> dict[str, Any]:
    return {"repo": absolute(repo or "."), "name": name}


def _tell(result: dict[str, Any], line: str, as_json: bool) -> None:
    typer.echo(json.dumps(result) if as_json else line)


def _line(session: dict[str, Any]) -> str:
    used = datetime.datetime.fromtimestamp(session["used_at"]).isoformat(" ", "minutes")
    more = [f"from {session['parent']}"] if session["parent"] else []
    more += ["closed"] if session["closed"] else []
    parts = (session["name"], counted(session["turns"], "turn"), f"used {used}", *more)
    return clean_line("  ".join(parts))
