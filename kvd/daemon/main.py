"""Start of the daemon's process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from kvd.daemon import logs
from kvd.daemon.activation import passed_sockets
from kvd.daemon.exclusive import Place
from kvd.errors import KvdError


def run(engine_command: Sequence[str] | None = None) -> int:
    """Be the daemon until told to stop; the exit status. Another daemon running already is no fault: 0."""
    os.umask(0o077)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        # Inside a git hook they would bend every look at every repository to that one.
        del os.environ[name]
    try:
        place = Place.take(passed_sockets())
        if place is None:
            return 0
        logs.set_up()
    except KvdError as error:
        # The command that started this process passes on these two lines.
        print(f"kvd: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"kvd: the daemon can't start: {error}", file=sys.stderr)
        return 1
    # Clients can connect from here on; what costs time to import comes after.
    from kvd.daemon.server import Daemon
    from kvd.service.engine import COMMAND
    from kvd.service.service import Service

    async def serve() -> None:
        await Daemon(place, Service(engine_command or COMMAND)).run()

    asyncio.run(serve())
    return 0
