"""`kvd bench` as a command: what it refuses at once, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from kvd.bench import plots
from kvd.bench.__main__ import show_kv
from kvd.errors import UsageError
from tests.conftest import Kvd


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--share", "nan"), "nan is no number"),
        (("--costs", "nan", "1", "1", "1"), "give four times in milliseconds"),
        (("--costs", "1", "1", "inf", "1"), "give four times in milliseconds"),
        (("--costs", "1", "1", "1", "-1"), "give four times in milliseconds"),
    ],
)
def test_numbers_that_are_none_are_refused(kvd: Kvd, arguments: tuple[str, ...], words: str) -> None:
    done = kvd.run("bench", "paging", *arguments)
    assert done.returncode == 2
    message, hint = done.stderr.splitlines()
    assert message.startswith("kvd: ")
    assert words in message
    assert hint == "hint: kvd bench paging --help"


def test_a_work_folder_that_can_not_be_made_is_one_line(kvd: Kvd) -> None:
    done = kvd.run("bench", "paging", "--work", "/proc/nothing", "--json", timeout=120)
    assert done.returncode == 2
    assert "can't write to the folder /proc/nothing" in json.loads(done.stdout)["error"]["message"]
    assert len(done.stderr.splitlines()) == 2


def test_a_folder_for_plots_is_tried_before_anything_is_measured(kvd: Kvd, tmp_path: Path) -> None:
    # There are no questions either, which comes later.
    options = ("--plots", "/proc/nothing", "--questions", str(tmp_path))
    error = kvd.json("bench", "kv", *options, timeout=120)["error"]
    assert error["hint"] == "give --plots a folder that you can write"


def test_a_result_is_shown_although_it_can_not_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = {"kl": 0.1, "header_share": 0.05, "recompute_share": 0.0}
    result = {"about": {"model": "m"}, "variants": [{"name": "kvd", "outcomes": [outcome]}], "speed": None}
    options = {"json": True, "plots": str(tmp_path / "plots")}
    with pytest.raises(FileNotFoundError):
        show_kv(result, options)
    assert json.loads(capsys.readouterr().out) == result
    plots.check(tmp_path / "plots")
    show_kv(result, options)
    assert [file.name for file in (tmp_path / "plots").iterdir()] == ["kv-quality.png"]
    with pytest.raises(UsageError, match="can't write"):
        plots.check(tmp_path / "plots" / "kv-quality.png")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_run_ends_with_the_command(kvd: Kvd, repository: Path, tmp_path: Path, number: int) -> None:
    subject = "Sessions expire after their lifetime"
    subprocess.run(["git", "-C", str(repository), "commit", "--allow-empty", "-qm", subject], check=True)
    command = kvd.command("bench", "paging", "--repo", str(repository), "--work", str(tmp_path), "--asks", "10000000")
    # Under nohup it would be ignored.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    signal.signal(signal.SIGHUP, before)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "trace of seed 1" in line:
                break
        # A terminal that is closed tells all that it started.
        os.killpg(process.pid, number) if number == signal.SIGHUP else process.send_signal(number)
        # Ends when nobody has the pipe open any more.
        _, rest = process.communicate(timeout=60)
    finally:
        # Its group: the run would be left over.
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stderr.close()
    assert process.returncode == (130 if number == signal.SIGTERM else -number)
    assert rest.splitlines() == ["kvd: interrupted"]
