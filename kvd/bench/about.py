"""What a figure needs beside it: the command, the day, the versions and the machine."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import llama_cpp

import kvd
from kvd.bench.disk import cpu_name
from kvd.engine.machine import physical_cores


def about(command: str) -> dict[str, Any]:
    return {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "kvd": kvd.__version__,
        "engine": f"llama-cpp-python {llama_cpp.__version__}",
        "machine": f"{physical_cores()} threads, {cpu_name()}",
    }
