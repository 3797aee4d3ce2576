import sys

from kvd.daemon.main import run

sys.exit(run())
