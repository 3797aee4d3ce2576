from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvd import paths
from kvd.bench.folders import living_in, writable
from kvd.errors import BusyError, UsageError


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing")):
        with pytest.raises(UsageError, match=f"can't write to the folder {folder}: ") as caught:
            writable(folder, "--save")
        assert caught.value.hint == "give --save a folder that you can write"
    writable(tmp_path / "new" / "one", "--save")
    assert list((tmp_path / "new" / "one").iterdir()) == []


def test_everything_but_models_is_kept_in_the_work_folder(tmp_path: Path) -> None:
    models = paths.models_dir()
    with living_in(tmp_path / "work"):
        assert paths.store_file() == tmp_path / "work" / "cache" / "kvd" / "kv.db"
        assert paths.config_file().parents[2] == paths.log_file().parents[2] == tmp_path / "work"
        assert Path(os.environ["XDG_RUNTIME_DIR"]) == tmp_path / "work" / "run"
        assert (tmp_path / "work" / "run").stat().st_mode & 0o777 == 0o700
        assert paths.models_dir() == models


def test_a_work_folder_is_one_benchmarks_alone(tmp_path: Path) -> None:
    with living_in(tmp_path / "work"):
        with (
            pytest.raises(BusyError, match=f"{tmp_path}/work is in use by another kvd bench") as caught,
            living_in(tmp_path / "work"),
        ):
            pass
        assert "--work" in caught.value.hint
        with living_in(tmp_path / "work" / "pressure"):
            pass
    with living_in(tmp_path / "work"):
        pass


def test_what_is_in_the_way_inside_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to("/nonexistent")
    with pytest.raises(UsageError, match=f"can't write to the folder {tmp_path}/cache"), living_in(tmp_path):
        pass
