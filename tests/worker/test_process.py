from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import poll

CHILD = """
import signal
from kvd.worker.process import prepare
answers = prepare()
answers.write(b"ready")
answers.flush()
print("what native code says goes nowhere near the frames", flush=True)
signal.pause()
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
assert child.stdout.read(5) == b"ready"
print(child.pid, flush=True)
child.wait()
"""


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="the system does it on Linux alone")
def test_a_child_that_is_stopped_does_not_outlive_its_daemon() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.wait(10)
    parent.stdout.close()
    poll(lambda: gone(child))
