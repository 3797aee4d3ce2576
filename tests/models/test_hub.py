from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvd.errors import DownloadError, UsageError
from kvd.models import hub as hub_module
from kvd.models.catalogue import QWEN_CODER_05B
from kvd.models.hub import download, mirrored
from kvd.types import Progress

if TYPE_CHECKING:
    from tests.models.conftest import Hub


def ignore(progress: Progress) -> None:
    """For tests that don't look at the progress."""


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_brings_the_whole_file_with_progress(hub: Hub, part: Path, content: bytes) -> None:
    seen: list[Progress] = []
    download(hub.url, part, len(content), seen.append)
    assert part.read_bytes() == content
    assert part.stat().st_mode & 0o777 == 0o600
    assert [progress.done for progress in seen] == sorted({progress.done for progress in seen})
    assert seen[-1] == Progress("download", len(content), len(content), "from 127.0.0.1")


def test_goes_on_where_the_part_ends(hub: Hub, part: Path, content: bytes) -> None:
    part.write_bytes(content[:1000])
    download(hub.url, part, len(content), ignore)
    assert part.read_bytes() == content
    assert hub.ranges == ["bytes=1000-"]


def test_starts_over_at_a_server_without_ranges(hub: Hub, part: Path, content: bytes) -> None:
    hub.knows_ranges = False
    part.write_bytes(b"x" * 1000)
    download(hub.url, part, len(content), ignore)
    assert part.read_bytes() == content


def test_a_complete_part_needs_no_request_and_a_longer_one_is_dropped(hub: Hub, part: Path, content: bytes) -> None:
    part.write_bytes(content)
    download(hub.url, part, len(content), ignore)
    assert hub.ranges == []
    part.write_bytes(content + b"more")
    download(hub.url, part, len(content), ignore)
    assert part.read_bytes() == content
    assert hub.ranges == [None]


def test_survives_cut_connections(hub: Hub, part: Path, content: bytes) -> None:
    hub.cuts = [70_000, 0, 0, 70_000, 0, 0]
    download(hub.url, part, len(content), ignore)
    assert part.read_bytes() == content
    assert len(hub.ranges) == 7
    assert hub.ranges[-1] == "bytes=140000-"


def test_gives_up_when_nothing_comes_any_more_and_keeps_what_came(hub: Hub, part: Path, content: bytes) -> None:
    hub.cuts = [70_000] + [0] * 50
    with pytest.raises(DownloadError, match="keeps failing"):
        download(hub.url, part, len(content), ignore)
    assert part.read_bytes() == content[:70_000]
    assert len(hub.ranges) == 5


def test_survives_a_server_that_falls_silent(
    hub: Hub, part: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "_CONNECT_SECONDS", 0.3)
    hub.stalls = True
    part.write_bytes(content[:10])
    download(hub.url, part, len(content), ignore)
    assert part.read_bytes() == content
    assert len(hub.ranges) == 2


def test_tries_again_when_the_server_is_busy_or_the_range_was_wrong(hub: Hub, part: Path, content: bytes) -> None:
    hub.statuses = [503, 416]
    part.write_bytes(b"x" * 10)
    download(hub.url, part, len(content), ignore)
    assert part.read_bytes() == content
    assert hub.ranges == ["bytes=10-", "bytes=10-", None]


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_file_that_is_not_there_fails_at_once(hub: Hub, part: Path, status: int) -> None:
    hub.statuses = [status]
    with pytest.raises(DownloadError, match=f"does not have it \\({status} "):
        download(hub.url, part, 10, ignore)
    assert len(hub.ranges) == 1


@pytest.mark.parametrize("have", [0, 5])
def test_a_file_of_another_size_is_refused(hub: Hub, part: Path, content: bytes, have: int) -> None:
    part.write_bytes(b"x" * have)
    with pytest.raises(DownloadError, match=f"a file of {len(content)} bytes, expected are 10"):
        download(hub.url, part, 10, ignore)
    assert part.stat().st_size == have


def test_takes_no_more_than_expected_of_a_server_that_tells_no_length(hub: Hub, part: Path, content: bytes) -> None:
    hub.tells_length = False
    download(hub.url, part, 1000, ignore)
    assert part.read_bytes() == content[:1000]


def test_a_hub_that_is_not_there_fails_at_once(part: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(DownloadError, match=r"127\.0\.0\.1 can't be reached \(Connection refused\)"):
            download(f"http://127.0.0.1:{port}/model", part, 10, ignore)
    assert not part.exists()


def test_follows_redirects_but_not_to_an_open_connection(hub: Hub, part: Path, content: bytes) -> None:
    hub.redirect = "/elsewhere"
    download(hub.url, part, len(content), ignore)
    assert part.read_bytes() == content
    part.unlink()
    hub.redirect = "http://models.example/model"
    with pytest.raises(DownloadError, match="leads to an open connection"):
        download(hub.url, part, len(content), ignore)


@pytest.mark.parametrize("url", ["http://models.example/m", "ftp://127.0.0.1/m", "file:///etc/passwd", "m.gguf"])
def test_only_https_is_used(url: str, part: Path) -> None:
    with pytest.raises(UsageError, match="over an open connection"):
        download(url, part, 10, ignore)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_no_reason_to_try_again(hub: Hub, content: bytes) -> None:
    with pytest.raises(OSError, match=r"\[Errno") as caught:
        download(hub.url, Path("/dev/full"), len(content), ignore)
    assert caught.value.errno == errno.ENOSPC
    assert len(hub.ranges) == 1


def test_the_mirror_takes_the_hub_s_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mirrored(QWEN_CODER_05B.hub_url) == QWEN_CODER_05B.hub_url
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/hf/")
    assert mirrored(QWEN_CODER_05B.hub_url).startswith("https://mirror.example/hf/Qwen/Qwen2.5-Coder-0.5B")
    assert mirrored("http://127.0.0.1:80/x") == "http://127.0.0.1:80/x"
