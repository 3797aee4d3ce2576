from __future__ import annotations

import stat
from pathlib import Path

import apsw
import pytest

from kvd import paths
from kvd.errors import StoreError
from kvd.recall import database
from tests.test_regular import NOT_FILES, put


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return paths.index_file(tmp_path)


def make(file: Path, root: Path, fingerprint: str = "1") -> str:
    db, reason = database.open_for_writing(file, root, fingerprint)
    db.close()
    return reason


def test_new_file(file: Path, tmp_path: Path) -> None:
    db, reason = database.open_for_writing(file, tmp_path, "1")
    assert reason == ""
    assert db.pragma("journal_mode") == "wal"
    assert db.pragma("auto_vacuum") == 2
    assert db.pragma("user_version") == database.SCHEMA_VERSION
    assert database.read_meta(db)["root"] == str(tmp_path)
    for name in (file, file.with_name(file.name + "-wal"), file.with_name(file.name + "-shm")):
        assert stat.S_IMODE(name.stat().st_mode) == 0o600
    db.close()
    assert make(file, tmp_path) == ""


def test_reading_needs_an_index(file: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no index") as caught:
        database.open_for_reading(file, tmp_path)
    assert caught.value.hint == f"kvd index {tmp_path}"
    assert not file.exists()


def test_reader_can_not_write(file: Path, tmp_path: Path) -> None:
    make(file, tmp_path)
    db = database.open_for_reading(file, tmp_path)
    with pytest.raises(apsw.ReadOnlyError):
        db.execute("DELETE FROM meta")
    db.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"not a database at all, but some text" * 100,
        lambda data: data[:100],
        lambda data: data[:5_000],
        lambda data: data[: len(data) // 2],
        lambda data: data[:18] + b"\xff\xff" + data[20:],
        lambda data: data[:100] + b"\xff" * 4_000 + data[4_100:],
        lambda data: data[:4_096] + b"\xff" * (len(data) - 4_096),
    ],
)
def test_damaged_file_is_made_anew_and_said(file: Path, tmp_path: Path, damage: object) -> None:
    make(file, tmp_path)
    assert callable(damage)
    file.write_bytes(damage(file.read_bytes()))
    reason = make(file, tmp_path)
    assert reason
    assert make(file, tmp_path) == ""


def test_newer_file_is_refused_and_kept(file: Path, tmp_path: Path) -> None:
    make(file, tmp_path)
    db = apsw.Connection(str(file))
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = file.read_bytes()
    with pytest.raises(StoreError, match="newer kvd") as caught:
        make(file, tmp_path)
    assert "update kvd" in caught.value.hint
    with pytest.raises(StoreError, match="newer kvd"):
        database.open_for_reading(file, tmp_path)
    assert file.read_bytes() == before


def test_another_schema_or_repository_is_made_anew(file: Path, tmp_path: Path) -> None:
    make(file, tmp_path)
    assert "held the index of" in make(file, tmp_path / "other")
    assert "another way" in make(file, tmp_path / "other", "2")
    db = apsw.Connection(str(file))
    db.execute("ALTER TABLE files ADD COLUMN odd TEXT")
    db.close()
    assert "table files" in make(file, tmp_path / "other", "2")


def test_killed_while_being_made(file: Path, tmp_path: Path) -> None:
    file.write_bytes(b"")
    assert make(file, tmp_path) == "unfinished or older file"


@pytest.mark.parametrize("kind", NOT_FILES)
def test_what_is_no_file_is_named(file: Path, tmp_path: Path, kind: str) -> None:
    put(file, kind)
    with pytest.raises(StoreError, match=f"can't write the index .*: it is a (named )?{kind}, not a file"):
        make(file, tmp_path)
    with pytest.raises(StoreError, match=f"can't read the index .*: it is a (named )?{kind}, not a file"):
        database.open_for_reading(file, tmp_path)
