"""`kvd status`, `kvd metrics`, `kvd start`, `kvd stop`, `kvd logs`, `kvd gc`."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from kvd.errors import UnavailableError

from .variables import tell_unreached, with_environment

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_NOW_SECONDS = 30.0


def status(as_json: Json = False) -> None:
    """What runs, what is loaded, what is stored. Starts nothing."""
    from kvd.rpc.client import Client

    from . import states

    client = Client.running()
    if client is None:
        state = states.without_daemon()
    else:
        with client:
            state = client.call("status", {}, timeout=15.0)
    typer.echo(json.dumps(state) if as_json else "\n".join(states.lines(state)))


def metrics(as_json: Json = False) -> None:
    """Print what the daemon counts, as Prometheus reads it. Starts nothing."""
    from kvd.rpc.client import Client

    client = Client.running()
    if client is None:
        raise UnavailableError("no daemon runs, so nothing is counted", hint="kvd start")
    with client:
        result = client.call("metrics", {}, timeout=15.0)
    if as_json:
        typer.echo(json.dumps({"metrics": result["metrics"]}))
    else:
        typer.echo(result["text"], nl=False)


def start() -> None:
    """Start the daemon. Other commands do that by themselves."""
    from kvd.rpc.client import Client

    with_environment({})
    with Client.connect() as client:
        tell_unreached(client.server)
        typer.echo(f"running, pid {client.server['pid']}")


def stop(
    now: Annotated[bool, typer.Option("--now", help="Cancel what is being answered.")] = False,
) -> None:
    """Stop the daemon when it has answered what it was asked."""
    from kvd.rpc.client import Client
    from kvd.rpc.launch import connect_to_running

    from .text import counted

    sock = connect_to_running()
    if sock is None:
        typer.echo("not running")
        return
    with Client(sock) as client:
        try:
            result = client.call("shutdown", {"mode": "cancel" if now else "drain"}, timeout=10.0)
        except UnavailableError:
            if not now:
                raise
            client.kill()
            result = {}
        if result.get("active") and not now:
            typer.echo(f"waiting for {counted(result['active'], 'request')} (kvd stop --now cancels them)", err=True)
        if not client.wait_closed(_NOW_SECONDS if now else None):
            client.kill()
    typer.echo("stopped")


def logs(
    lines: Annotated[int, typer.Option("-n", metavar="N", min=0, help="Print the last N lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing what comes.")] = False,
) -> None:
    """Print the daemon's log. It holds no questions and no code."""
    from kvd import paths

    from .tail import follow_file, last_lines

    file = paths.log_file()
    for line in last_lines(file, lines):
        typer.echo(line)
    if not follow:
        return
    for line in follow_file(file):
        typer.echo(line)
        sys.stdout.flush()


def gc(as_json: Json = False) -> None:
    """Remove indexes of deleted folders, and KV above the cap."""
    from kvd.rpc.client import Client

    from .text import counted, file_size

    with Client.connect() as client:
        result: dict[str, Any] = client.call("gc", {})
    if as_json:
        typer.echo(json.dumps(result))
        return
    store, removed = result["store"], result["removed"]
    reasons = {
        "foreign": "of other models",
        "cap": "to keep the cap",
        "damaged": "damaged",
        "full_disk": "because the disk is full",
    }
    gone = "".join(f", {counted(removed[name], 'block')} {words}" for name, words in reasons.items() if removed[name])
    if forgotten := result["indexes"]["removed"]:
        size = file_size(result["indexes"]["freed_bytes"])
        which = (
            "an index of a folder that is gone" if forgotten == 1 else f"{forgotten:,} indexes of folders that are gone"
        )
        typer.echo(f"removed {which} ({size})")
    typer.echo(
        f"freed {file_size(result['freed_bytes'])}{gone}; the store has {file_size(store.get('file_bytes', 0))}"
        f" of at most {file_size(store['cap_bytes'])}"
    )
