"""`kvd mcp`."""

from __future__ import annotations

from kvd.errors import KvdError

from .variables import with_environment


def mcp() -> None:
    """Serve agents over stdin and stdout, by the Model Context Protocol."""
    settings = with_environment({"top_k": None, "budget": None, "max_tokens": None, "reuse": None, "rerank_ms": None})
    try:
        from kvd.mcp_server.server import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise KvdError("`kvd mcp` needs the package mcp, 2.3 or newer", hint="pip install 'kvd[mcp]'") from None
    run(settings)
