"""Python, memory, disk and folders, as the doctor finds them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from kvd import paths
from kvd.config import Settings
from kvd.doctor import machine
from kvd.models.machine import probe


def test_this_python_will_do() -> None:
    found = machine.python()
    assert found.verdict == "ok"
    assert found.text.startswith("3.")


def test_a_machine_without_memory_is_a_fault() -> None:
    roomy = replace(probe(), available=8_000_000_000)
    assert machine.memory(roomy).verdict == "ok"
    full = machine.memory(replace(roomy, available=200_000_000))
    assert full.verdict == "fault"
    assert full.hint


def test_a_store_that_can_outgrow_the_disk_is_noted() -> None:
    assert machine.disk(Settings(store_bytes=1_000_000)).verdict == "ok"
    found = machine.disk(Settings(store_bytes=1 << 60))
    assert found.verdict == "note"
    assert "the store may grow by" in found.text
    assert str(paths.config_file()) in found.hint


def test_what_the_store_has_already_is_not_wanted_again() -> None:
    paths.store_file().touch()
    os.truncate(paths.store_file(), 1 << 40)
    assert machine.disk(Settings(store_bytes=1 << 40)).verdict == "ok"


def test_folders_can_be_written() -> None:
    found = machine.folders()
    assert found.verdict == "ok"
    assert not any(paths.cache_dir().glob("tmp*"))


def test_a_runtime_folder_that_others_can_write_is_a_fault() -> None:
    folder = paths.runtime_dir()
    folder.chmod(0o777)
    found = machine.folders()
    assert found.verdict == "fault"
    assert str(folder) in found.text
    assert f"chmod 700 {folder}" in found.hint


def test_a_file_in_a_folders_place_is_a_fault(isolated_home: Path) -> None:
    (isolated_home / "cache").write_text("")
    for found in (machine.folders(), machine.disk(Settings())):
        assert found.verdict == "fault"
        assert "XDG_CACHE_HOME" in found.hint
