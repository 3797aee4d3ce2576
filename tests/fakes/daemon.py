"""A real daemon whose engine is the scripted one. An argument is the version that it claims to be."""

from __future__ import annotations

import sys
from pathlib import Path

import kvd
from kvd.daemon.main import run

if __name__ == "__main__":
    if len(sys.argv) > 1:
        kvd.__version__ = sys.argv[1]
    sys.exit(run([sys.executable, str(Path(__file__).with_name("engine_child.py"))]))
