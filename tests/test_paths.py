import os
import stat
from pathlib import Path

import pytest

from kvd import paths
from kvd.errors import UnavailableError


def test_runtime_folder_is_private_and_in_the_session(isolated_home: Path) -> None:
    folder = paths.runtime_dir()
    assert folder == isolated_home / "run" / "kvd"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707])
def test_a_runtime_folder_open_to_others_is_refused(isolated_home: Path, mode: int) -> None:
    paths.runtime_dir().chmod(mode)
    with pytest.raises(UnavailableError, match="not yours alone") as caught:
        paths.runtime_dir()
    assert "chmod 700" in caught.value.hint


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_runtime_folder_of_another_user_is_refused(isolated_home: Path) -> None:
    os.chown(paths.runtime_dir(), 65534, 65534)
    with pytest.raises(UnavailableError, match="not yours alone"):
        paths.runtime_dir()


def test_a_linked_runtime_folder_is_refused(isolated_home: Path, tmp_path: Path) -> None:
    (isolated_home / "run" / "kvd").symlink_to(tmp_path)
    with pytest.raises(UnavailableError, match="not yours alone"):
        paths.runtime_dir()


def test_a_long_path_gets_a_short_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    socket = paths.socket_file()
    try:
        assert str(socket).startswith(f"/tmp/kvd-{os.getuid()}-")
        assert len(os.fsencode(socket)) <= 100
        assert socket == paths.socket_file()
    finally:
        socket.parent.rmdir()


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_relative_xdg_folders_are_ignored(monkeypatch: pytest.MonkeyPatch, isolated_home: Path, value: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert paths.cache_dir() == isolated_home / ".cache" / "kvd"


def test_a_home_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    with pytest.raises(UnavailableError, match="can't make the folder") as caught:
        paths.cache_dir()
    assert "XDG_CACHE_HOME" in caught.value.hint
