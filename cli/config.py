"""`kvd config`: the settings, where they come from, and changes to the user's own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from kvd import config as settings
from kvd import paths
from kvd.config import FIELDS, PREFIX, REPOSITORY_FILE, Found
from kvd.errors import KvdError, RepositoryError

from .repository_commands import Json, Repo
from .text import clean_line
from .variables import unreached

app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="NAME", help="A setting.")]


@app.callback(invoke_without_command=True)
def _config(context: typer.Context, repo: Repo = None, as_json: Json = False) -> None:
    """Show every setting and where it comes from, or change the user's own.

    Flags go before the environment (KVD_ and the setting's name), that before the repository's .kvd.toml, that before
    the user's config.toml.
    """
    if context.invoked_subcommand is not None:
        return
    root, server = _root(repo), _server()
    found = _gather(root, server)
    notes = unreached(server) if server else []
    if as_json:
        files = {"user": str(paths.config_file()), "repository": str(root / REPOSITORY_FILE)}
        typer.echo(json.dumps({"settings": [_row(*item) for item in found.items()], "files": files, "notes": notes}))
        return
    for name, item in found.items():
        typer.echo(_line(name, item))
        typer.echo(f"    {FIELDS[name].metadata['meaning']} ({_reach(name)})")
    for note in notes:
        typer.echo(f"kvd: {note}", err=True)


@app.command()
def get(name: Name, repo: Repo = None, as_json: Json = False) -> None:
    """Print the value of a setting."""
    item = _gather(_root(repo), _server())[settings.known(name)]
    typer.echo(json.dumps(_row(name, item)) if as_json else clean_line(settings.written(item.value)))


@app.command("set", context_settings={"ignore_unknown_options": True})
def set_(
    name: Name, value: Annotated[str, typer.Argument(metavar="VALUE", help="A number, true or false, or text.")]
) -> None:
    """Write a setting into the user's config.toml; comments and order stay."""
    from kvd.config_file import set_value

    parsed = settings.parsed(settings.known(name), value)
    if name == "embedder" and parsed != settings.DEFAULT_EMBEDDER:
        from kvd.models.embedder import embedder_path, read_embedder

        read_embedder(embedder_path(parsed))
    set_value(name, parsed)
    _tell_effect(name)


@app.command()
def unset(name: Name) -> None:
    """Take a setting out of the user's config.toml, so that the default counts."""
    from kvd.config_file import unset as take_out

    if not take_out(name):
        settings.known(name)
        typer.echo(f"kvd: {name} is not set in {clean_line(str(paths.config_file()))}", err=True)
    elif name in FIELDS:
        _tell_effect(name)


@app.command()
def path() -> None:
    """Print where the user's config.toml is, or would be."""
    typer.echo(clean_line(str(paths.config_file())))


def _tell_effect(name: str) -> None:
    """What counts from now on, which need not be what was written."""
    try:
        typer.echo(_line(name, _gather(_root(None), _server())[name]))
    except KvdError as error:
        # What was asked for is done.
        typer.echo(f"kvd: {clean_line(error.message)}", err=True)


def _root(repo: str | None) -> Path:
    folder = Path(os.path.realpath(repo or "."))
    if repo is not None and not folder.is_dir():
        raise RepositoryError(f"there is no folder {repo}", hint="give the folder of a repository")
    return paths.git_root(folder) or folder


def _server() -> dict[str, Any]:
    """What the daemon says of itself, nothing where none runs."""
    from kvd.rpc.client import Client

    client = Client.running()
    if client is None:
        return {}
    with client:
        return client.server


def _gather(root: Path, server: dict[str, Any]) -> dict[str, Found]:
    """As the next request finds it. Without a daemon the next command starts one in this environment."""
    variables = settings.environment(request=False)
    if server:
        variables = {
            name: Found(value, "environment", f"{PREFIX}{name.upper()} of the daemon")
            for name, value in server.get("environment", {}).items()
            if name in FIELDS
        }
    return settings.gather(root, variables | settings.environment(request=True))


def _line(name: str, item: Found) -> str:
    return clean_line(f"{f'{name} = {settings.written(item.value)}':<34}  {item.where or item.source}")


def _reach(name: str) -> str:
    rule = FIELDS[name].metadata
    counts = "the command's environment" if rule["request"] else "the daemon's environment"
    return (
        counts + {"": "", "yes": f", {REPOSITORY_FILE}", "less": f", {REPOSITORY_FILE} only less"}[rule["repository"]]
    )


def _row(name: str, item: Found) -> dict[str, Any]:
    rule = FIELDS[name].metadata
    return {
        "name": name,
        "value": item.value,
        "default": FIELDS[name].default,
        "source": item.source,
        "where": item.where,
        "meaning": rule["meaning"],
        "variable": PREFIX + name.upper(),
        "variable_of": "command" if rule["request"] else "daemon",
        "repository": rule["repository"] or "no",
    }
