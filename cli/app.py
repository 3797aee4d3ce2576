"""Which commands there are. Each imports what it needs when it runs, so that `kvd` starts at once."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import kvd

COMMANDS = {
    "setup": "setup",
    "bench": "bench",
    "index": "repository_commands",
    "search": "repository_commands",
    "ask": "repository_commands",
    "chat": "chat",
    "sessions": "sessions",
    "notes": "notes",
    "status": "daemon_commands",
    "doctor": "doctor",
    "metrics": "daemon_commands",
    "start": "daemon_commands",
    "stop": "daemon_commands",
    "logs": "daemon_commands",
    "forget": "repository_commands",
    "gc": "daemon_commands",
    "hooks": "hooks",
    "config": "config",
    "service": "service",
    "mcp": "mcp",
    "serve": "serve",
}
"""Names, in the order of the help, and modules: a command is a function of that name, a group of commands an `app`."""


def build_app(arguments: list[str]) -> typer.Typer:
    """The command that `arguments` name; all of them where they name none."""
    app = typer.Typer(
        name="kvd",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    for name in [name for name in COMMANDS if name == named(arguments)] or COMMANDS:
        module = import_module(f".{COMMANDS[name]}", __package__)
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name, cls=_Command)(getattr(module, name))
    return app


def named(arguments: list[str]) -> str:
    """What stands where the command's name does, or ""."""
    words = arguments[1:] if arguments[:1] == ["--"] else arguments
    return words[0] if words else ""


class _Command(TyperCommand):
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Typer puts required arguments in braces, which nobody has to type."""
        return [piece.removeprefix("{").removesuffix("}") for piece in super().collect_usage_pieces(ctx)]


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False,
) -> None:
    """A local code assistant that remembers your repository: answers start at once, nothing leaves the machine."""
    if version:
        typer.echo(f"kvd {kvd.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
