"""`kvd service`: systemd listens in the daemon's place, and starts it when somebody comes."""

from __future__ import annotations

import json

import typer

from kvd.errors import BusyError, KvdError

from .repository_commands import Json
from .text import clean_line

app = typer.Typer()

_STOP_SECONDS = 60.0


@app.callback()
def _service() -> None:
    """Let systemd listen in the daemon's place, and start it when a client comes (Linux)."""


@app.command()
def install() -> None:
    """Write the user units kvd.socket and kvd.service, and start the socket. A daemon that runs is stopped first."""
    from kvd.systemd import units

    units.check_system()
    units.write()
    _say(f"wrote {units.SOCKET} and {units.SERVICE} in {units.folder()}")
    if not units.has_systemctl():
        _say(f"there is no systemctl here; where systemd runs: {units.typed(units.RELOAD, units.ENABLE)}")
        return
    units.systemctl(units.RELOAD, then=[units.ENABLE])
    # One that listens at the same place would lose its socket.
    _stop_daemon()
    units.systemctl(units.ENABLE)
    _say("systemd listens; the next command starts the daemon")


@app.command()
def uninstall() -> None:
    """Stop the socket and the daemon, and remove the units. Commands start the daemon by themselves again."""
    from kvd.systemd import units

    units.check_system()
    there = units.state_of(units.SOCKET) != "missing" and units.has_systemctl()
    fault: KvdError | None = None
    try:
        if there:
            units.systemctl(units.DISABLE, then=[units.STOP])
            units.systemctl(units.STOP)
    except KvdError as error:
        # Where no systemd can be reached the files can go all the same.
        fault = error
    removed = units.remove()
    _say(f"removed {' and '.join(removed)} from {units.folder()}" if removed else "not installed")
    if fault:
        raise fault
    if there:
        units.systemctl(units.RELOAD)


@app.command()
def status(as_json: Json = False) -> None:
    """Whether the units are there, and what systemd says of them. Starts nothing."""
    from kvd.rpc.peer import daemon_pid
    from kvd.systemd import units

    units.check_system()
    state = {
        unit: {
            "file": str(units.folder() / unit),
            "state": units.state_of(unit),
            "active": units.answer_of("is-active", unit) if units.has_systemctl() else "unknown",
        }
        for unit in units.UNITS
    }
    running = daemon_pid() is not None
    if as_json:
        typer.echo(json.dumps({"units": state, "running": running}))
        return
    for unit, found in state.items():
        _say(f"{unit:<12} {found['state']}, {found['active']}  {found['file']}")
    _say(f"daemon       {'running' if running else 'not running'}")
    if any(found["state"] == "outdated" for found in state.values()):
        typer.echo("kvd: the units are of another kvd or environment, renew them: kvd service install", err=True)


def _stop_daemon() -> None:
    from kvd.rpc.client import Client

    client = Client.running()
    if client is None:
        return
    with client:
        client.call("shutdown", {"mode": "drain"}, timeout=10.0)
        if client.wait_closed(_STOP_SECONDS):
            return
        raise BusyError("the daemon is still at work", hint="kvd stop --now, then: kvd service install")


def _say(text: str) -> None:
    typer.echo(clean_line(text))
