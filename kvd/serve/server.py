"""Listening on this machine, and nowhere else."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from kvd import paths
from kvd.errors import KvdError
from kvd.plain import clean_line
from kvd.rpc.messages import Message
from kvd.serve.app import make_app
from kvd.serve.requests import PREFIX
from kvd.serve.token import read_token

_ADDRESS = "127.0.0.1"
_GOODBYE_SECONDS = 2


def run(port: int, settings: Message, tell: Callable[[str], None]) -> None:
    """Serve until interrupted. Port 0 is any free one. Raises `KvdError` where it can't listen or there is no key."""
    token = read_token()
    with _listening(port) as sock:
        actual = sock.getsockname()[1]
        here = os.path.realpath(".")
        tell(f"listening on http://{_ADDRESS}:{actual}/v1, for this machine alone; Ctrl-C ends it")
        tell(f"the API key: cat {paths.token_file()}")
        tell(clean_line(f"a model is a repository, this folder's: {PREFIX}{paths.git_root(Path(here)) or here}"))
        config = uvicorn.Config(
            make_app(token, actual, settings),
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GOODBYE_SECONDS,
        )
        uvicorn.Server(config).run(sockets=[sock])


def _listening(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((_ADDRESS, port))
        sock.listen()
    except OSError as error:
        sock.close()
        message = f"can't listen on {_ADDRESS}:{port}: {error.strerror}"
        raise KvdError(message, hint="kvd serve --port 0 takes a free one") from error
    return sock
