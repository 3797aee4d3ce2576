from __future__ import annotations

import dataclasses
import os
import signal
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from kvd.errors import StoreError
from kvd.kv.store import DAMAGE, BlockStore, StoredBlock
from tests.test_regular import NOT_FILES, put

WHOSE = b"f" * 32


def block(name: bytes, size: int = 100, whose: bytes = WHOSE) -> StoredBlock:
    return StoredBlock(name.ljust(32, b"-"), bytes(32), whose, 3, (name * size)[:size])


def keys(*names: bytes) -> list[bytes]:
    return [name.ljust(32, b"-") for name in names]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.db"


def test_a_reader_sees_what_the_writer_put(path: Path) -> None:
    reader = BlockStore(path, readonly=True)
    assert reader.get(keys(b"a"), WHOSE) == {}
    writer = BlockStore(path)
    writer.put([block(b"a"), block(b"b")])
    assert reader.get(keys(b"a", b"b", b"c"), WHOSE) == {
        key: (name * 100)[:100] for key, name in zip(keys(b"a", b"b"), (b"a", b"b"), strict=True)
    }
    assert writer.stats()["blocks"] == 2
    assert writer.stats()["tokens"] == 6


def test_a_reader_follows_a_file_that_is_replaced(path: Path) -> None:
    writer = BlockStore(path)
    writer.put([block(b"a")])
    reader = BlockStore(path, readonly=True)
    assert list(reader.get(keys(b"a"), WHOSE)) == keys(b"a")
    writer.close()
    for file in path.parent.glob("kv.db*"):
        file.unlink()
    assert reader.get(keys(b"a"), WHOSE) == {}
    BlockStore(path).put([block(b"b")])
    assert list(reader.get(keys(b"a", b"b"), WHOSE)) == keys(b"b")


def test_another_models_blocks_are_not_found(path: Path) -> None:
    writer = BlockStore(path)
    writer.put([block(b"a")])
    assert writer.get(keys(b"a"), b"g" * 32) == {}


def test_many_keys_in_one_call(path: Path) -> None:
    writer = BlockStore(path)
    names = [f"{index}".encode() for index in range(1500)]
    writer.put([block(name) for name in names])
    assert len(writer.get(keys(*names), WHOSE)) == 1500


def test_dropped_blocks_are_gone(path: Path) -> None:
    writer = BlockStore(path)
    writer.put([block(b"a"), block(b"b")])
    writer.drop(keys(b"a"))
    assert list(writer.get(keys(b"a", b"b"), WHOSE)) == keys(b"b")


def test_gc_brings_all_files_under_the_cap_and_the_oldest_leave(path: Path) -> None:
    writer = BlockStore(path)
    for index in range(60):
        writer.put([block(f"{index}".encode(), 50_000)])
    writer.touch(keys(b"0"))
    assert writer.file_bytes() > 3_000_000
    freed = writer.gc(1_000_000)
    assert writer.file_bytes() <= 1_000_000
    assert freed > 2_000_000
    left = writer.get(keys(*(f"{index}".encode() for index in range(60))), WHOSE)
    assert 10 <= len(left) <= 20
    assert {keys(b"0")[0], keys(b"59")[0]} <= set(left)
    assert keys(b"1")[0] not in left


def test_the_file_is_its_owners_alone(path: Path) -> None:
    BlockStore(path).put([block(b"a")])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_newer_format_is_refused_and_kept(path: Path) -> None:
    BlockStore(path).close()
    db = apsw.Connection(str(path))
    db.pragma("user_version", 99)
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer kvd"):
        BlockStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_damaged_file_is_made_anew_and_said(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    writer = BlockStore(path)
    assert "damaged" in writer.rebuilt
    writer.put([block(b"a")])
    assert list(writer.get(keys(b"a"), WHOSE)) == keys(b"a")


def test_a_truncated_file_loses_blocks_not_the_store(path: Path) -> None:
    writer = BlockStore(path)
    writer.put([block(f"{index}".encode(), 20_000) for index in range(50)])
    writer.gc(10**9)
    writer.close()
    os.truncate(path, path.stat().st_size // 2)
    writer = BlockStore(path)
    writer.put([block(b"new")])
    assert list(writer.get(keys(b"new"), WHOSE)) == keys(b"new")


_WRITE_FOR_EVER = """
import sys
from pathlib import Path
from kvd.kv.store import DAMAGE, BlockStore, StoredBlock
store = BlockStore(Path(sys.argv[1]))
for index in range(10**6):
    name = str(index).encode()
    store.put([StoredBlock(name.rjust(32, b"0"), bytes(32), b"f" * 32, 1, name * 2000)])
    if index % 10 == 9:
        store.gc(3_000_000)
    print(index, flush=True)
"""


def test_killed_while_writing_loses_nothing_committed(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", _WRITE_FOR_EVER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = -1
    for line in process.stdout:
        last = int(line)
        if last >= 25:
            process.send_signal(signal.SIGKILL)
            break
    process.wait(10)
    process.stdout.close()
    writer = BlockStore(path)
    assert writer.rebuilt == ""
    found = writer.get([str(index).encode().rjust(32, b"0") for index in range(last + 1)], b"f" * 32)
    assert len(found) == last + 1
    assert all(data == key.lstrip(b"0") * 2000 for key, data in found.items() if key.strip(b"0"))


def damage_page(path: Path, name: str) -> None:
    """Overwrite the first page of a table or index."""
    db = apsw.Connection(str(path))
    page = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).get
    size = db.pragma("page_size")
    db.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xee" * size)


def spoil(path: Path, how: str) -> None:
    if " " not in how:
        damage_page(path, how)
        return
    db = apsw.Connection(str(path))
    db.execute(how)
    db.close()


@pytest.mark.parametrize(
    "how",
    [
        "blocks",
        "blocks_by_parent",
        "sqlite_autoindex_blocks_1",
        "models",
        "usage",
        "usage_by_value",
        "DROP TABLE blocks",
        "DROP TABLE usage",
        "DROP TRIGGER block_added",
        "DELETE FROM usage",
        "INSERT INTO usage VALUES (CAST('new-----------------------------' AS BLOB), 1, 0, 0, 0, 0)",
        "ALTER TABLE models DROP COLUMN seconds",
        "PRAGMA user_version = 0",
    ],
)
def test_damage_of_every_part_ends_with_a_store_that_works(path: Path, how: str) -> None:
    writer = BlockStore(path)
    writer.put([block(f"{index}".encode(), 3_000) for index in range(50)])
    writer.gc(10**9)
    writer.close()
    spoil(path, how)
    writer = BlockStore(path)
    try:
        writer.put([block(b"new")])
    except DAMAGE as error:
        writer.start_anew(error)
        writer.put([block(b"new")])
    assert list(writer.get(keys(b"new"), WHOSE)) == keys(b"new")
    writer.gc(1_000_000)


def test_a_removed_file_is_noticed(path: Path) -> None:
    writer = BlockStore(path)
    assert writer.is_current
    path.unlink()
    assert not writer.is_current


@pytest.mark.parametrize("gone", ["log", "content"])
def test_a_log_that_is_gone_is_noticed(path: Path, gone: str) -> None:
    writer = BlockStore(path)
    writer.put([block(b"a")])
    assert writer.is_current
    if gone == "log":
        Path(f"{path}-wal").unlink()
    else:
        os.truncate(path, 0)
        # SQLite takes the log away when this opens the file.
        assert not BlockStore(path, readonly=True).get(keys(b"a"), WHOSE)
    assert not writer.is_current


@pytest.mark.parametrize("kind", NOT_FILES)
def test_what_is_no_file_is_named_and_a_reader_sees_nothing_in_it(path: Path, kind: str) -> None:
    put(path, kind)
    assert BlockStore(path, readonly=True).get(keys(b"a"), WHOSE) == {}
    with pytest.raises(StoreError, match=f"can't open {path}: it is a (named )?{kind}, not a file"):
        BlockStore(path)


def test_what_is_no_file_beside_it_is_named(path: Path) -> None:
    BlockStore(path).put([block(b"a")])
    journal = Path(f"{path}-journal")
    put(journal, "pipe")
    assert BlockStore(path, readonly=True).get(keys(b"a"), WHOSE) == {}
    with pytest.raises(StoreError, match=f"can't open {journal}: it is a named pipe, not a file"):
        BlockStore(path)


def held_reader(path: Path) -> apsw.Connection:
    """Another connection in the middle of a read."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.execute("BEGIN")
    db.execute("SELECT count(*) FROM blocks").fetchall()
    return db


def test_readers_that_stay_open_bound_what_gc_and_put_may_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvd.kv.space._CHECKPOINT_MS", 1)
    cap = 4_000_000
    writer = BlockStore(path)
    for index in range(200):
        writer.put([block(f"{index}".encode(), 20_000)], 2 * cap)
    full = writer.file_bytes()
    assert full > cap
    readers = [held_reader(path), held_reader(path)]
    writer.gc(cap)
    # The log can't be emptied: gc has used no more than its share, and given back nothing.
    assert full <= writer.file_bytes() <= full + cap // 8 + 200_000
    with pytest.raises(StoreError, match="a reader holds the log"):
        writer.put([block(b"more", 20_000)], cap)
    assert writer.file_bytes() <= full + cap // 8 + 400_000
    assert [db.execute("SELECT count(*) FROM blocks").get for db in readers] == [200, 200]
    for db in readers:
        db.close()
    writer.gc(cap)
    assert writer.file_bytes() <= cap
    writer.put([block(b"after", 20_000)], cap)
    assert writer.file_bytes() <= cap


def fits(store: BlockStore, name: bytes, cap: int) -> bool:
    """Put a block of 20 kB; false if there is no room. Either way the cap holds."""
    try:
        store.put([block(name, 20_000)], cap)
    except StoreError:
        return False
    finally:
        assert store.file_bytes() <= cap
    return True


def test_a_reader_that_stays_open_does_not_let_writes_break_the_cap(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvd.kv.space._CHECKPOINT_MS", 1)
    cap = 4_000_000
    writer = BlockStore(path)
    writer.put([block(b"first")], cap)
    reader = held_reader(path)
    refused = next(index for index in range(1_000) if not fits(writer, f"{index}".encode(), cap))
    assert refused > 20
    with pytest.raises(StoreError, match="a reader holds the log"):
        writer.put([block(b"more", 20_000)], cap)
    for _ in range(500):
        with suppress(StoreError):
            writer.touch(keys(*(f"{index}".encode() for index in range(refused))))
    with pytest.raises(StoreError, match="a reader holds the log"):
        writer.drop(keys(b"0"))
    assert writer.file_bytes() <= cap
    reader.close()
    writer.put([block(b"after", 20_000)], cap)
    assert writer.file_bytes() <= cap


_FILL_A_SMALL_DISK = """
import resource, sys
from pathlib import Path
from kvd.service.store_writer import StoreWriter
from kvd.kv.store import StoredBlock
path = Path(sys.argv[1])
writer = StoreWriter(path, lambda: 10**9)
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, resource.RLIM_INFINITY))
for index in range(400):
    name = b"%032d" % index
    writer.put([StoredBlock(name, bytes(32), b"f" * 32, 1, name * 600)])
assert writer.flush(60)
full = writer.counts()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.put([StoredBlock(b"%032d" % 1000, bytes(32), b"f" * 32, 1, b"room again")])
assert writer.flush(60)
writer.close(60)
print(full["written_blocks"], full["lost_blocks"], writer.counts()["written_blocks"])
"""


def test_a_full_disk_loses_blocks_and_nothing_else(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FILL_A_SMALL_DISK, str(path)], capture_output=True, text=True, timeout=120, check=True
    )
    written, lost, later = (int(word) for word in done.stdout.split())
    assert written + lost == 400
    assert 50 < written < 350
    assert later == written + 1
    writer = BlockStore(path)
    assert writer.rebuilt == ""
    found = writer.get([b"%032d" % index for index in range(1001)], WHOSE)
    assert len(found) == later
    assert all(data == key * 600 for key, data in found.items() if data != b"room again")
    db = apsw.Connection(str(path))
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


_IN_A_FOLDER_THAT_CANT_BE_WRITTEN = """
import os, sys
from pathlib import Path
from kvd.errors import StoreError
from kvd.kv.store import BlockStore
folder = Path(sys.argv[1])
folder.chmod(0o555)
if os.geteuid() == 0:
    os.seteuid(65534)
for name in ("new.db", "old.db"):
    try:
        BlockStore(folder / name)
        print("opened", name)
    except StoreError as error:
        print(name, error.message.startswith("can't open"), bool(error.hint))
    print(BlockStore(folder / name, readonly=True).get([b"k"], b"f"))
"""


def test_a_folder_that_cant_be_written() -> None:
    # Not in pytest's own folder, which another user, as whom root has to try, can't even enter.
    with tempfile.TemporaryDirectory() as name:
        old = Path(name) / "old.db"
        BlockStore(old).close()
        program = [sys.executable, "-c", _IN_A_FOLDER_THAT_CANT_BE_WRITTEN, name]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
        Path(name).chmod(0o755)
    assert done.stdout.splitlines() == ["new.db True True", "{}", "old.db True True", "{}"], done.stderr


def test_what_is_erased_is_overwritten(path: Path) -> None:
    writer = BlockStore(path)
    parent, child, other = block(b"a"), block(b"b"), block(b"c")
    writer.put([parent, dataclasses.replace(child, parent=parent.key), other])
    writer.erase([parent.key])
    assert writer.stats()["blocks"] == 1
    on_disk = b"".join(file.read_bytes() for file in path.parent.glob("kv.db*"))
    assert child.data not in on_disk
    assert other.data in on_disk
