"""A real daemon whose engine is the scripted one."""

from __future__ import annotations

import sys
from pathlib import Path

from kvd.daemon.main import run

if __name__ == "__main__":
    sys.exit(run([sys.executable, str(Path(__file__).with_name("engine_child.py"))]))
