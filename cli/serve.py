"""`kvd serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from kvd.errors import KvdError

from .variables import with_environment


def serve(
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="Where to listen; 0: any free port.")
    ] = 8642,
) -> None:
    """Serve chats on this machine by OpenAI's API, until Ctrl-C; each repository is a model."""
    settings = with_environment({"top_k": None, "budget": None, "max_tokens": None, "reuse": None, "rerank_ms": None})
    try:
        from kvd.serve.server import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        message = "`kvd serve` needs the packages starlette and uvicorn"
        raise KvdError(message, hint="pip install 'kvd[serve]'") from None
    run(port, settings, lambda line: typer.echo(line))
