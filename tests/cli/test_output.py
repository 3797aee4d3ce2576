"""What the command does when its output can't be written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import Kvd

NO_SPACE = "kvd: can't write the output: No space left on device"


def shell(kvd: Kvd, redirect: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirect}', "sh", *kvd.command(*arguments)],
        cwd=kvd.folder,
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )


def test_a_full_disk_is_said(kvd: Kvd, repository: Path) -> None:
    kvd.ok("index", str(repository))
    for arguments in (
        ["index", str(repository)],
        ["search", "session", "--json", "--repo", str(repository)],
        ["search", "session", "--repo", str(repository)],
        ["status"],
        ["--version"],
        ["--help"],
        # The error itself was to go to stdout.
        ["search", "", "--json"],
    ):
        done = shell(kvd, "> /dev/full", *arguments)
        assert done.returncode == 1, arguments
        first, second = done.stderr.splitlines()
        assert first == NO_SPACE
        assert second.startswith("hint: ")


def test_an_error_that_can_t_be_written_keeps_its_status(kvd: Kvd) -> None:
    for redirect in ("2> /dev/full", "2>&-", "> /dev/full 2> /dev/full"):
        done = shell(kvd, redirect, "bogus")
        assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
    assert shell(kvd, "> /dev/full 2> /dev/full", "--version").returncode == 1


def test_a_reader_that_has_left_is_no_error(kvd: Kvd) -> None:
    def piped(*arguments: str) -> tuple[int, bytes]:
        process = subprocess.Popen(
            kvd.command(*arguments), cwd=kvd.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
        process.stderr.close()
        return process.wait(60.0), said

    assert piped("--help") == (0, b"")
    assert piped("search", "", "--json") == (2, b"")


@pytest.mark.parametrize("redirect", [">&-", ">&- 2>&-", "<&- >&- 2>&-", "<&-"])
def test_closed_streams_are_taken_for_nowhere(kvd: Kvd, redirect: str) -> None:
    done = shell(kvd, redirect, "status")
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (redirect == "<&-")
    assert shell(kvd, redirect, "bogus").returncode == 2


def test_a_daemon_started_with_closed_streams_serves_the_next_command(kvd: Kvd, repository: Path) -> None:
    done = shell(kvd, "<&- >&- 2>&-", "index", str(repository))
    assert done.returncode == 0
    assert kvd.json("index", str(repository))["unchanged"] == 3
