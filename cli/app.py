"""Which commands there are. Each imports what it needs when it runs, so that `kvd` starts at once."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import kvd

from . import config, daemon_commands, hooks, repository_commands, service
from .doctor import doctor


def build_app(arguments: list[str]) -> typer.Typer:
    """The commands; `setup` and `bench`, which need more imports, only where `arguments` may mean them."""
    app = typer.Typer(
        name="kvd",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    if not arguments or arguments[0] in ("setup", "bench") or arguments[0].startswith("-"):
        from .setup import setup

        app.command()(setup)
        from .bench import app as bench

        app.add_typer(bench, name="bench")
    for command in (
        repository_commands.index,
        repository_commands.search,
        repository_commands.ask,
        daemon_commands.status,
        doctor,
        daemon_commands.metrics,
        daemon_commands.start,
        daemon_commands.stop,
        daemon_commands.logs,
        daemon_commands.gc,
    ):
        app.command(cls=_Command)(command)
    app.add_typer(hooks.app, name="hooks")
    app.add_typer(config.app, name="config")
    app.add_typer(service.app, name="service")
    return app


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
