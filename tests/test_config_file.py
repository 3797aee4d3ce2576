"""What `kvd config set` and `unset` leave of the user's file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kvd import paths
from kvd.config import load_settings
from kvd.config_file import set_value, unset
from kvd.errors import StoreError, UsageError


def write(text: str) -> Path:
    file = paths.config_file()
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode())
    return file


def test_the_first_setting_makes_a_private_file() -> None:
    set_value("n_ctx", 4096)
    file = paths.config_file()
    assert file.read_text() == "n_ctx = 4096\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == [file.name]


def test_comments_order_and_mode_stay() -> None:
    file = write("# mine\n\nwatch   = true  # noisy\nn_ctx = 4096\n\n# the end\n")
    file.chmod(0o640)
    set_value("watch", False)
    set_value("eviction", "lru")
    assert file.read_text().startswith("# mine\n\nwatch   = false  # noisy\nn_ctx = 4096\n\n# the end\n")
    assert unset("n_ctx")
    assert not unset("n_ctx")
    assert file.read_text() == '# mine\n\nwatch   = false  # noisy\n\n# the end\neviction = "lru"\n'
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert (load_settings().watch, load_settings().eviction) == (False, "lru")


def test_line_ends_of_another_system_stay() -> None:
    file = write("# mine\r\nn_ctx = 4096\r\n")
    set_value("n_ctx", 2048)
    assert file.read_bytes() == b"# mine\r\nn_ctx = 2048\r\n"


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.toml"
    target.write_text("n_ctx = 4096\n")
    file = paths.config_file()
    file.parent.mkdir(parents=True)
    file.symlink_to(target)
    set_value("n_ctx", 2048)
    assert file.is_symlink()
    assert target.read_text() == "n_ctx = 2048\n"


def test_a_file_with_other_mistakes_can_be_mended() -> None:
    file = write("modle = 'x'\nn_ctx = 'y'\n")
    assert unset("modle")
    set_value("n_ctx", 4096)
    assert file.read_text() == "n_ctx = 4096\n"


def test_what_is_no_toml_is_left_alone() -> None:
    file = write("n_ctx = 4096\nbudget\n")
    with pytest.raises(UsageError, match=":2: "):
        set_value("n_ctx", 2048)
    assert file.read_text() == "n_ctx = 4096\nbudget\n"


def test_a_folder_that_cannot_be_made_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null/x")
    with pytest.raises(StoreError, match=r"can't write /dev/null/x/kvd/config\.toml"):
        set_value("n_ctx", 2048)


def test_changes_at_the_same_time_are_all_kept() -> None:
    program = "import sys; from kvd.config_file import set_value; set_value(sys.argv[1], int(sys.argv[2]))"
    changes = {"n_ctx": 4096, "budget": 100, "top_k": 3, "max_tokens": 7}
    writers = [
        subprocess.Popen([sys.executable, "-c", program, name, str(value)], stderr=subprocess.PIPE, text=True)
        for name, value in changes.items()
    ]
    assert [writer.communicate(timeout=60.0)[1] for writer in writers] == [""] * len(writers)
    settings = load_settings()
    assert {name: getattr(settings, name) for name in changes} == changes
