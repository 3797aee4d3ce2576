from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kvd.regular import MOST_BYTES, check_regular, read_json, read_small

NOT_FILES = ["folder", "pipe", "device", "socket"]


def put(path: Path, kind: str) -> None:
    """Something other than a regular file at `path`."""
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/full")
    else:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))


@pytest.mark.parametrize("kind", NOT_FILES)
def test_what_is_no_file_is_named_and_not_read(isolated_home: Path, kind: str) -> None:
    path = isolated_home / "thing"
    put(path, kind)
    for attempt in (check_regular, read_small, read_json):
        with pytest.raises(OSError, match=f"it is a (named )?{kind}, not a file"):
            attempt(path)


def test_a_device_may_be_allowed(tmp_path: Path) -> None:
    check_regular(Path("/dev/null"), device=True)
    check_regular(tmp_path / "missing")
    with pytest.raises(OSError, match="it is a folder"):
        check_regular(tmp_path, device=True)


def test_a_small_file_is_read_whole_and_a_large_one_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * MOST_BYTES)
    assert read_small(path) == b"x" * MOST_BYTES
    os.truncate(path, MOST_BYTES + 1)
    with pytest.raises(OSError, match="it has more than 1,000,000 bytes"):
        read_small(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_small(path)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5_000, "\xff"])
def test_what_is_no_json_is_a_value_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"."):
        read_json(path)
