from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner, Result

from kvd import paths
from kvd.errors import CancelledError, DownloadError, ModelError, UsageError
from kvd.models.active import active_model
from kvd.models.catalogue import CatalogueEntry
from kvd.models.machine import Machine
from kvd_cli import setup as command

if TYPE_CHECKING:
    from tests.models.conftest import Hub

MACHINE = Machine(memory=8_000_000_000, available=6_000_000_000, cores=2)


@pytest.fixture(autouse=True)
def this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "probe", lambda: MACHINE)


@pytest.fixture
def chosen(entry: CatalogueEntry, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """The test's own model is the one that suits the machine."""
    monkeypatch.setattr(command, "choose", lambda machine, hub=True: entry)
    return entry


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(command.setup)
    return CliRunner().invoke(app, arguments)


def test_fetches_what_suits_the_machine_and_says_why(chosen: CatalogueEntry) -> None:
    result = run()
    assert result.exception is None
    assert result.stdout.splitlines() == [
        "model:   tiny (0 parameters, 0 MB, Apache-2.0)",
        "chosen:  suits 2 cores, 6.0 GB of 8.0 GB memory free, no GPU",
        f"file:    {paths.models_dir() / 'tiny.gguf'}",
        'next:    kvd ask "where does this program start?"',
        "better:  smollm2-135m has room here too, answers better and more slowly:",
        "         kvd setup --model smollm2-135m",
    ]
    lines = result.stderr.splitlines()
    assert lines[0] == "fetching from 127.0.0.1: 0 MB of 0 MB"
    assert lines[-1] == "verifying"
    assert len(lines) <= 12
    assert active_model().name == "tiny"


def test_json_is_one_object(chosen: CatalogueEntry) -> None:
    done = json.loads(run("--json").stdout)
    assert done["model"] == "tiny"
    assert done["sha256"] == chosen.sha256
    assert done["size"] == chosen.size
    assert done["path"] == str(active_model().path)
    assert done["licence"] == "Apache-2.0"
    assert done["reason"].startswith("suits 2 cores")
    assert done["machine"]["cores"] == 2


def test_takes_a_smaller_model_where_the_chosen_one_can_t_be_had(
    entry: CatalogueEntry, monkeypatch: pytest.MonkeyPatch, hub: Hub, content: bytes
) -> None:
    big = CatalogueEntry("big", "big.gguf", 10, "0" * 64, "MIT", "7B", 0, hub_url=hub.url)
    monkeypatch.setattr(command, "choose", lambda machine, hub=True: big if hub else entry)
    result = run()
    assert result.exception is None
    assert "can't fetch big: the model hub offers a file of" in result.stdout
    assert "model:   tiny (0 parameters, 0 MB, Apache-2.0), instead" in result.stdout
    assert active_model().name == "tiny"
    with pytest.raises(DownloadError):
        raise run("--from", "hub").exception or AssertionError("the hub alone must not do")


def test_any_file_can_be_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(content)
    result = run("--model", str(path))
    assert result.stdout.splitlines()[:3] == [
        "model:   mine (licence not known)",
        "chosen:  the file you named",
        f"file:    {path}",
    ]
    assert json.loads(run("--model", str(path), "--json").stdout)["licence"] is None
    assert "mine: " in run("--list").stdout


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ("gpt-9", UsageError, "no model is called 'gpt-9'"),
        ("./missing", UsageError, "no such file"),
        ("missing.gguf", UsageError, "no such file"),
        (__file__, ModelError, "is not a GGUF file"),
    ],
)
def test_what_can_t_be_used_is_said(value: str, kind: type[Exception], words: str) -> None:
    result = run("--model", value)
    assert type(result.exception) is kind
    assert words in str(result.exception)


def test_the_list_shows_what_is_here_and_what_suits(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run("--list").stdout.splitlines()
    assert lines[0] == "this machine: 2 cores, 6.0 GB of 8.0 GB memory free, no GPU"
    assert lines[2].split() == [
        *("qwen2.5-coder-0.5b", "0.5B", "491", "MB", "needs", "1.5", "GB", "Apache-2.0", "suggested"),
    ]
    listed = json.loads(run("--list", "--json").stdout)
    assert [row["sources"] for row in listed["models"]] == [
        ["packages"],
        ["hub", "packages"],
        ["hub", "packages"],
        ["hub"],
    ]
    assert [row["name"] for row in listed["models"] if row["suggested"]] == ["qwen2.5-coder-0.5b"]


def test_ctrl_c_says_that_it_goes_on(chosen: CatalogueEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "use_entry", interrupted)
    result = run()
    assert isinstance(result.exception, CancelledError)
    assert result.exception.hint == "kvd setup (it goes on where it stopped)"
