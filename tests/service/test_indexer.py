from __future__ import annotations

import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import apsw
import pytest

from kvd import paths
from kvd.config import Settings
from kvd.errors import CancelledError, RepositoryError, StoreError
from kvd.recall import database
from kvd.recall.embed import default_embedder, label
from kvd.recall.index import only_writer
from kvd.recall.rank import search
from kvd.recall.table import TableEmbedder
from kvd.service import indexer
from kvd.service import update as updating
from kvd.service.indexer import Means, index_stats, known_indexes, update_index
from kvd.source import cutter
from kvd.source.content import Content
from kvd.source.cutter import Cutter, Item
from kvd.types import IndexSummary, Progress
from tests.fakes.hashed_words import HashedWords

T = TypeVar("T")


def never() -> bool:
    return False


def quiet(progress: Progress) -> None:
    """Nobody watches."""


def update(root: Path, max_file_bytes: int = 1_000_000) -> IndexSummary:
    return update_index(root, Settings(max_file_bytes=max_file_bytes), quiet, never)


def has_index(root: Path) -> bool:
    """Whether a usable index exists that was completed once."""
    try:
        return bool(index_stats(root)["complete"])
    except StoreError:
        return False


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        file = root / name.replace("__", "/").replace("_py", ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def age(root: Path) -> None:
    """Make files look an hour old, so that their timestamps can be trusted."""
    for folder, _, names in os.walk(root):
        for name in names:
            status = os.lstat(os.path.join(folder, name))
            os.utime(os.path.join(folder, name), ns=(0, status.st_mtime_ns - 3_600_000_000_000), follow_symlinks=False)


def tables(root: Path) -> dict[str, int]:
    """Rows of every table; chunks without a vector are pending."""
    db = database.open_for_reading(paths.index_file(root), root)
    try:
        names = ("files", "chunks", "words", "vectors", "pending")
        found = {name: int(database.rows(db, f"SELECT count(*) FROM {name}")[0][0]) for name in names}
        chunks = {row[0] for row in database.rows(db, "SELECT id FROM chunks")}
        with_vector = {row[0] for row in database.rows(db, "SELECT rowid FROM vectors")}
        assert {row[0] for row in database.rows(db, "SELECT chunk_id FROM pending")} == chunks - with_vector
        assert with_vector <= chunks
        assert {row[0] for row in database.rows(db, "SELECT rowid FROM words")} == chunks
        assert not database.rows(db, "SELECT 1 FROM chunks WHERE file_id NOT IN (SELECT id FROM files)")
        return found
    finally:
        db.close()


def hits(root: Path, query: str) -> list[str]:
    return [hit.chunk.path for hit in search(root, query, 5)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(
        tmp_path,
        a_py="def alpha_function():\n    return 'first'\n",
        sub__b_py="def beta_function():\n    return 'second'\n",
    )
    (tmp_path / ".env").write_text("PASSWORD=hunter2\n")
    (tmp_path / "logo.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "notes.xyz").write_text("gamma words in a format that nobody knows\n")
    age(tmp_path)
    return tmp_path


@pytest.fixture
def no_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test when anything is cut or embedded."""

    def refuse(*_: object) -> Iterator[object]:
        raise AssertionError("nothing was to be cut")

    class Unchanged:
        def __enter__(self) -> Unchanged:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def cut(self, items: Iterator[object]) -> Iterator[object]:
            assert list(items) == []
            return iter(())

    monkeypatch.setattr(indexer, "Cutter", Unchanged)
    monkeypatch.setattr(TableEmbedder, "embed_documents", refuse)


def test_first_run(root: Path) -> None:
    summary = update(root)
    assert (summary.files, summary.added, summary.changed, summary.deleted, summary.unchanged) == (3, 3, 0, 0, 0)
    assert summary.skipped == {"binary": 1, "empty": 1, "secret": 1}
    assert summary.repo == str(root)
    assert summary.embedder == label(default_embedder())
    assert (summary.by_lines, summary.by_lines_reasons) == (1, {"no grammar: unknown": 1})
    assert summary.languages == {"python": 2, "unknown": 1}
    assert summary.rebuilt == ""
    assert hits(root, "alpha_function")[0] == "a.py"
    assert hits(root, "gamma words") == ["notes.xyz"]
    assert tables(root) == {"files": 3, "chunks": 3, "words": 3, "vectors": 3, "pending": 0}
    assert b"hunter2" not in paths.index_file(root).read_bytes()
    assert stat.S_IMODE(paths.index_file(root).stat().st_mode) == 0o600


@pytest.mark.usefixtures("root")
def test_unchanged_tree_costs_nothing(root: Path, request: pytest.FixtureRequest) -> None:
    update(root)
    request.getfixturevalue("no_parsing")
    summary = update(root)
    assert (summary.files, summary.unchanged, summary.added, summary.changed) == (3, 3, 0, 0)
    assert summary.skipped == {"binary": 1, "empty": 1, "secret": 1}
    assert summary.by_lines == 1


def test_touched_file_is_read_but_not_redone(root: Path, request: pytest.FixtureRequest) -> None:
    update(root)
    os.utime(root / "a.py")
    request.getfixturevalue("no_parsing")
    assert update(root).unchanged == 3


def test_one_changed_file_redoes_that_file_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update(root)
    cut: list[str] = []

    class Watching(Cutter):
        def cut(self, items: Iterable[Item[T]]) -> Iterator[tuple[Item[T], Content]]:
            for item, content in super().cut(items):
                cut.append(item.path)
                yield item, content

    monkeypatch.setattr(indexer, "Cutter", Watching)
    write(root, a_py="def alpha_renamed():\n    return 'changed'\n")
    summary = update(root)
    assert cut == ["a.py"]
    assert (summary.changed, summary.unchanged, summary.added) == (1, 2, 0)
    assert "alpha_renamed" in search(root, "alpha_renamed", 1)[0].chunk.text


def test_change_within_the_same_timestamp_is_seen(root: Path) -> None:
    file = root / "a.py"
    write(root, a_py="def alpha_one(): pass\n")
    update(root)
    status = file.stat()
    write(root, a_py="def alpha_two(): pass\n")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert update(root).changed == 1
    assert "alpha_two" in search(root, "alpha_two", 1)[0].chunk.text


def test_no_ghosts(root: Path) -> None:
    long = "".join(f"def function_{n}():\n" + "    value = 1\n" * 100 + "\n" for n in range(5))
    write(root, c_py=long)
    update(root)
    assert tables(root)["chunks"] == 8
    write(root, c_py=long[: len(long) // 5 * 3])
    update(root)
    assert tables(root)["chunks"] == 6
    write(root, c_py="")
    summary = update(root)
    assert (summary.deleted, summary.skipped["empty"]) == (1, 2)
    (root / "c.py").unlink()
    (root / "a.py").rename(root / "renamed.py")
    summary = update(root)
    assert (summary.added, summary.deleted, summary.files) == (1, 1, 3)
    assert hits(root, "alpha_function")[0] == "renamed.py"
    assert "c.py" not in hits(root, "alpha_function")
    shutil.rmtree(root / "sub")
    for name in ("renamed.py", "notes.xyz"):
        (root / name).unlink()
    summary = update(root)
    assert (summary.files, summary.chunks, summary.deleted) == (0, 0, 3)
    assert not any(tables(root).values())
    assert hits(root, "alpha_function") == []


def test_branch_switch(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    write(tmp_path, a_py="def on_main(): pass\n", b_py="def main_alone(): pass\n")
    git("add", ".")
    git("commit", "-qm", "main")
    git("checkout", "-qb", "side")
    write(tmp_path, a_py="def on_side(): pass\n", c_py="def side_alone(): pass\n")
    git("rm", "-q", "b.py")
    git("add", ".")
    git("commit", "-qm", "side")
    update(tmp_path)
    assert hits(tmp_path, "side_alone")[0] == "c.py"
    git("checkout", "-q", "main")
    summary = update(tmp_path)
    assert (summary.added, summary.changed, summary.deleted) == (1, 1, 1)
    texts = {hit.chunk.text for hit in search(tmp_path, "on_main main_alone on_side side_alone", 9)}
    assert texts == {"def on_main(): pass", "def main_alone(): pass"}


def test_file_that_becomes_skipped_goes(root: Path) -> None:
    update(root)
    write(root, a_py="# @generated\ndef alpha_function(): pass\n")
    summary = update(root)
    assert (summary.files, summary.deleted, summary.skipped["generated"]) == (2, 1, 1)
    assert update(root).skipped["generated"] == 1
    (root / ".gitattributes").write_text("sub/* linguist-generated\n")
    summary = update(root)
    assert summary.skipped["generated"] == 2
    assert "sub/b.py" not in hits(root, "beta_function")
    assert update(root, max_file_bytes=20).skipped["too large"] >= 2


def test_a_list_says_what_is_no_secret(root: Path) -> None:
    def skipped(not_secret: str) -> int:
        return update_index(root, Settings(not_secret=not_secret), quiet, never).skipped.get("secret", 0)

    (root / "config.yaml").write_text("delta_service:\n  api_key: kJ8x2mQz7Rv4tYw9Lp3s\n")
    (root / "tls.key").write_text("-----BEGIN PRIVATE KEY-----\n" + "A" * 64 + "\nepsilon words\n")
    assert skipped("") == 3
    assert hits(root, "delta_service") == []
    # Name and content are both believed, at once and for unchanged files too.
    assert skipped("config.yaml *.key") == 1
    assert hits(root, "delta_service") == ["config.yaml"]
    assert hits(root, "epsilon words")[0] == "tls.key"
    assert skipped("*.key") == 2
    assert hits(root, "delta_service") == []
    assert b"kJ8x2mQz7Rv4tYw9Lp3s" not in paths.index_file(root).read_bytes()
    assert skipped("") == 3


def test_kvdignore_takes_out_what_was_indexed(root: Path) -> None:
    update(root)
    (root / ".kvdignore").write_text("sub/\n.kvdignore\n")
    summary = update(root)
    assert (summary.deleted, summary.skipped["kvdignore"]) == (1, 2)
    assert "sub/b.py" not in hits(root, "beta_function")
    (root / ".kvdignore").unlink()
    assert update(root).added == 1


def test_unreadable_file(root: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("everything is readable to root")
    update(root)
    (root / "a.py").chmod(0)
    os.utime(root / "a.py")
    assert update(root).skipped["unreadable"] == 1
    assert hits(root, "alpha_function") == []


def test_progress(root: Path) -> None:
    seen: list[Progress] = []
    update_index(root, Settings(), seen.append, never)
    assert seen[0] == Progress("first-index", message=str(root))
    assert seen[1].stage == "scan"
    assert [item.done for item in seen if item.stage == "index"] == [0, 1, 2, 3]
    assert {item.total for item in seen if item.stage == "index"} == {3}


def test_cancelled_run_goes_on_from_there(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"f{number:03}.py").write_text(f"def function_{number}(): pass\n")
    age(tmp_path)
    calls = iter(range(1_000_000))
    with pytest.raises(CancelledError):
        update_index(tmp_path, Settings(), quiet, lambda: next(calls) >= 120)
    assert not has_index(tmp_path)
    done = tables(tmp_path)["files"]
    assert 64 <= done <= 120
    summary = update(tmp_path)
    assert (summary.unchanged, summary.added) == (done, 200 - done)
    assert has_index(tmp_path)
    assert tables(tmp_path)["chunks"] == 200


_KILLED = """
import os, signal, sys
from pathlib import Path
from kvd.config import Settings
from kvd.service.indexer import update_index
def progress(item):
    if item.stage == "index" and item.done >= int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
update_index(Path(sys.argv[1]), Settings(), progress, lambda: False)
"""


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_killed_run_goes_on_from_there(tmp_path: Path, share: float) -> None:
    for number in range(200):
        (tmp_path / f"f{number:03}.py").write_text(f"def function_{number}(): pass\n")
    age(tmp_path)
    command = [sys.executable, "-c", _KILLED, str(tmp_path), str(int(200 * share))]
    killed = subprocess.run(command, env=os.environ | {"PYTHONPATH": os.getcwd()}, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    summary = update(tmp_path)
    assert summary.added + summary.unchanged == 200
    # Whole batches are kept; a batch and the files that were read ahead may be lost.
    most = updating._BATCH_FILES + cutter._AHEAD * cutter.MOST_CHILDREN
    assert int(200 * share) - most <= summary.unchanged <= int(200 * share)
    assert summary.rebuilt == ""
    assert tables(tmp_path) == {"files": 200, "chunks": 200, "words": 200, "vectors": 200, "pending": 0}


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"garbage" * 1_000),
        lambda file: os.truncate(file, file.stat().st_size // 2),
        lambda file: os.truncate(file, 5_000),
    ],
)
def test_damaged_index_is_rebuilt_and_said(root: Path, damage: Callable[[Path], None]) -> None:
    update(root)
    damage(paths.index_file(root))
    with pytest.raises(StoreError) as caught:
        search(root, "alpha_function", 5)
    assert caught.value.hint == f"kvd index {root}"
    assert not has_index(root)
    summary = update(root)
    assert summary.rebuilt
    assert summary.added == 3
    assert update(root).rebuilt == ""
    assert hits(root, "alpha_function")[0] == "a.py"


def test_damage_deep_in_the_file(root: Path) -> None:
    write(root, **{f"f{number}_py": f"def function_{number}():\n" + "    pass\n" * 200 for number in range(40)})
    update(root)
    file = paths.index_file(root)
    size = file.stat().st_size
    with file.open("r+b") as handle:
        for offset in range(20 * 4_096, size, 4_096):
            handle.seek(offset)
            handle.write(b"\xff" * 200)
    for number in range(40):
        write(root, **{f"f{number}_py": f"def changed_{number}(): pass\n"})
    seen: list[Progress] = []
    summary = update_index(root, Settings(), seen.append, never)
    assert summary.rebuilt
    assert Progress("rebuild", message=summary.rebuilt) in seen
    assert "first-index" not in {item.stage for item in seen}
    assert summary.added == 43
    assert "f7.py" in hits(root, "changed_7")


def spoil_pages(file: Path) -> None:
    with file.open("r+b") as handle:
        for offset in range(3 * 4_096, file.stat().st_size, 4_096):
            handle.seek(offset)
            handle.write(b"\xff" * 64)


def spoil_text(file: Path) -> None:
    data = file.read_bytes()
    assert b"return 'first'" in data
    file.write_bytes(data.replace(b"return 'first'", b"return '\xff\xff\xff\xff\xff'"))


@pytest.mark.parametrize("spoil", [spoil_pages, spoil_text])
def test_damage_that_a_search_meets_is_gone_after_the_next_update(root: Path, spoil: Callable[[Path], None]) -> None:
    update(root)
    spoil(paths.index_file(root))
    with pytest.raises(StoreError, match="is damaged") as caught:
        search(root, "alpha_function", 5)
    assert caught.value.hint == f"kvd index {root}"
    summary = update(root)
    assert (summary.added, summary.rebuilt) == (3, "damaged file")
    assert hits(root, "alpha_function")[0] == "a.py"
    summary = update(root)
    assert (summary.unchanged, summary.rebuilt) == (3, "")


def test_a_note_of_damage_goes_with_its_index(root: Path) -> None:
    update(root)
    file = paths.index_file(root)
    spoil_pages(file)
    with pytest.raises(StoreError):
        search(root, "alpha_function", 5)
    file.unlink()
    assert update(root).rebuilt == ""
    assert update(root).unchanged == 3


def test_damage_that_an_update_meets_in_a_text(root: Path) -> None:
    update(root)
    file = paths.index_file(root)
    data = file.read_bytes()
    assert b"sub/b.py" in data
    file.write_bytes(data.replace(b"sub/b.py", b"sub/\xff.py"))
    assert update(root).added == 3
    assert hits(root, "beta_function")[0] == "sub/b.py"


def test_a_rebuild_is_logged_once_and_told(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    update(root)
    file = paths.index_file(root)
    file.write_bytes(b"garbage" * 1_000)
    seen: list[Progress] = []
    with caplog.at_level(logging.WARNING, "kvd.service.indexer"):
        reason = update_index(root, Settings(), seen.append, never).rebuilt
        update(root)
    assert [record.getMessage() for record in caplog.records] == [f"index {file.name} made anew: {reason}"]
    assert seen[0] == Progress("rebuild", message=reason)
    assert "first-index" not in {item.stage for item in seen}


def test_deleted_index_is_made_again(root: Path) -> None:
    update(root)
    paths.index_file(root).unlink()
    assert not has_index(root)
    assert update(root).added == 3
    assert tables(root)["chunks"] == 3


def test_newer_index_is_refused(root: Path) -> None:
    update(root)
    db = apsw.Connection(str(paths.index_file(root)))
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="newer kvd"):
        update(root)
    assert not has_index(root)


def test_another_embedder_redoes_the_vectors_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update(root)

    class Other(HashedWords):
        name = "other"
        dimension = 128

    monkeypatch.setattr(indexer, "default_embedder", Other)
    summary = update(root)
    assert (summary.rebuilt, summary.unchanged, summary.pending_vectors) == ("", 3, 0)
    assert summary.embedder == "other/1/128"
    assert tables(root)["vectors"] == 3
    # Same size, other content.
    monkeypatch.setattr(Other, "version", 2)
    summary = update_index(root, Settings(), quiet, never, Means(None, 0.0))
    assert (summary.embedder, summary.pending_vectors) == ("other/2/128", 3)
    # Found by their words meanwhile.
    assert hits(root, "alpha_function")[0] == "a.py"
    assert update(root).pending_vectors == 0


def test_readers_are_never_locked_out(tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / f"f{number:03}.py").write_text(f"def function_{number}(): pass\n")
    update(tmp_path)
    failures: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                assert hits(tmp_path, "function_7")
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(3):
        for number in range(150):
            (tmp_path / f"f{number:03}.py").write_text(f"def function_{number}(): return {turn}\n")
        update(tmp_path)
        assert f"return {turn}" in search(tmp_path, "function_7", 1)[0].chunk.text
    stop.set()
    reader.join()
    assert failures == []


def test_two_indexers_take_turns(root: Path) -> None:
    summaries: list[IndexSummary] = []
    threads = [threading.Thread(target=lambda: summaries.append(update(root))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(summary.added for summary in summaries) == [0, 0, 0, 3]
    assert tables(root)["chunks"] == 3


def test_waiting_for_another_indexer_is_said_and_can_be_cancelled(root: Path) -> None:
    heard: list[Progress] = []
    with (
        only_writer(paths.index_file(root), never),
        pytest.raises(CancelledError),
    ):
        update_index(root, Settings(), heard.append, lambda: bool(heard))
    assert heard == [Progress("wait", message="for another program that indexes this repository")]
    assert update(root).added == 3


def test_stats(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert known_indexes() == []
    with pytest.raises(StoreError):
        index_stats(root)
    update(root)
    stats = index_stats(root)
    assert (stats["files"], stats["chunks"], stats["embedder"]) == (3, 3, label(default_embedder()))
    assert stats["bytes"] > 0
    other = tmp_path_factory.mktemp("other")
    update(other)
    (paths.cache_dir() / "index" / "broken.db").write_bytes(b"x")
    assert [item["repo"] for item in known_indexes()] == sorted([str(root), str(other)])


def test_empty_and_missing_repositories(tmp_path: Path) -> None:
    summary = update(tmp_path)
    assert (summary.files, summary.chunks) == (0, 0)
    assert has_index(tmp_path)
    assert search(tmp_path, "anything at all", 5) == []
    with pytest.raises(RepositoryError):
        update(tmp_path / "missing")
    with pytest.raises(RepositoryError):
        index_stats(tmp_path / "missing")


def test_odd_file_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "new\nline.py").write_text("def newline_name(): pass\n")
    (tmp_path / "-dash.py").write_text("def dash_name(): pass\n")
    (tmp_path / "deep.md").write_bytes(b"> " * 5_000 + b"bottom\n")
    (tmp_path / "latin.py").write_bytes("# caf\xe9\ndef latin_name(): pass\n".encode("latin-1"))
    (tmp_path / "turn.txt").write_text("<|im_end|> <|endoftext|> special turn words\n")
    (tmp_path / ("x" * 200)).mkdir()
    (tmp_path / ("x" * 200) / "long.py").write_text("def long_name(): pass\n")
    summary = update(tmp_path)
    assert summary.files == 6
    assert summary.by_lines_reasons == {"no grammar: text": 1, "parser failed": 1}
    assert hits(tmp_path, "newline_name")[0] == "new\nline.py"
    assert hits(tmp_path, "dash_name")[0] == "-dash.py"
    assert hits(tmp_path, "latin_name")[0] == "latin.py"
    assert hits(tmp_path, "long_name")[0].endswith("long.py")
    assert "<|im_end|>" in search(tmp_path, "special turn words", 1)[0].chunk.text


def test_deleted_rows_give_their_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvd.recall.index._COMPACT_AFTER", 50)
    for number in range(100):
        (tmp_path / f"f{number}.py").write_text(f"def function_{number}():\n" + "    pass\n" * 1_000)
    update(tmp_path)
    full = paths.index_file(tmp_path).stat().st_size
    for number in range(90):
        (tmp_path / f"f{number}.py").unlink()
    update(tmp_path)
    assert tables(tmp_path)["vectors"] == tables(tmp_path)["chunks"] < 150
    assert paths.index_file(tmp_path).stat().st_size < full / 2
    assert hits(tmp_path, "function_95")[0] == "f95.py"


def test_importing_is_light() -> None:
    code = (
        "import sys, kvd.service.indexer, kvd.recall.rank;"
        "print([name for name in ('torch', 'llama_cpp', 'numpy', 'tree_sitter', 'pathspec') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_another_file_of_the_same_size_and_time_is_noticed(root: Path, tmp_path: Path) -> None:
    for name, text in (("a.py", "def alpha_one(): pass\n"), ("other", "def gamma_two(): pass\n")):
        (root / name).write_text(text)
        os.utime(root / name, (1e9, 1e9))
    update(root)
    os.replace(root / "other", root / "a.py")
    update(root)
    assert hits(root, "gamma_two")[0] == "a.py"
    assert "a.py" not in hits(root, "alpha_one")
