from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kvd.engine.memory import CPU_TYPE, device_memory


def test_memory_that_is_taken_is_in_use() -> None:
    # In a process of its own: in this one earlier tests have left memory that is taken again, or goes meanwhile.
    code = (
        "import numpy as np; from kvd.engine.memory import memory_in_use as used; before = used()['host'];"
        " taken = np.ones(64 << 20, np.uint8); print(used()['host'] - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) == pytest.approx(64 << 20, rel=0.2)


def test_ggml_tells_the_memory_of_a_device() -> None:
    ((name, (free, total)),) = device_memory((CPU_TYPE,)).items()
    assert name == "CPU"
    assert total == pytest.approx(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.05)
    assert 0 < free <= total
