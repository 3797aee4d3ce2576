from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from kvd.engine.memory import CPU_TYPE, device_memory, memory_in_use


def test_memory_that_is_taken_is_in_use() -> None:
    # What earlier tests left must not go meanwhile.
    gc.collect()
    before = memory_in_use()["host"]
    taken = np.ones(64 << 20, np.uint8)
    grown = memory_in_use()["host"] - before
    assert grown == pytest.approx(taken.nbytes, rel=0.2)


def test_ggml_tells_the_memory_of_a_device() -> None:
    ((name, (free, total)),) = device_memory((CPU_TYPE,)).items()
    assert name == "CPU"
    assert total == pytest.approx(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.05)
    assert 0 < free <= total
