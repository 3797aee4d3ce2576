"""What a hook does: tell the daemon that an index may be behind, and be gone."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from kvd import paths
from kvd.errors import KvdError

_ANSWER_SECONDS = 10.0


def is_off() -> bool:
    """Whether the user wants no hooks to do anything."""
    return os.environ.get("KVD_HOOKS") == "0"


def hand_over() -> None:
    """Have the index of the repository in the working folder brought up to date, where there is one.

    Returns at once, whatever happens, and prints nothing: a process that has nothing of this one's does the work.
    """
    with suppress(OSError):
        root = Path(os.path.realpath(os.getcwd()))
        if is_off() or not paths.has_index(root) or os.fork():
            return
        try:
            _detach()
            _tell(root)
        finally:
            os._exit(0)


def _detach() -> None:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    os.chdir("/")


def _tell(root: Path) -> None:
    from kvd.rpc.client import Client

    with suppress(KvdError, OSError), Client.connect() as client:
        client.call("index", {"path": str(root), "background": True}, timeout=_ANSWER_SECONDS)
