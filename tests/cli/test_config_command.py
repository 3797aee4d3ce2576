"""`kvd config`, and what settings do to requests, as people see it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvd import paths
from kvd.config import FIELDS, Settings
from kvd.service.asker import Question, _applied
from tests.conftest import FakeDaemon, Kvd


def rows(kvd: Kvd, *arguments: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in kvd.json("config", *arguments)["settings"]}


def test_every_setting_is_shown_with_where_it_comes_from(
    kvd: Kvd, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kvd.ok("config", "path") == f"{paths.config_file()}\n"
    assert kvd.ok("config", "set", "top_k", "5") == f"{'top_k = 5':<34}  {paths.config_file()}:1\n"
    (repository / ".kvd.toml").write_text("budget = 900\ntop_k = 4\n")
    monkeypatch.setenv("KVD_BUDGET", "800")
    monkeypatch.setenv("KVD_N_CTX", "4096")
    found = rows(kvd, "--repo", str(repository / "src"))
    assert list(found) == list(FIELDS)
    told = {name: (row["value"], row["source"], row["where"]) for name, row in found.items()}
    assert told["budget"] == (800, "environment", "KVD_BUDGET")
    assert told["top_k"] == (4, "repository", f"{repository}/.kvd.toml:2")
    assert told["n_ctx"] == (4096, "environment", "KVD_N_CTX")
    assert told["threads"] == (0, "default", "")
    assert (found["budget"]["variable_of"], found["n_ctx"]["variable_of"]) == ("command", "daemon")
    text = kvd.ok("config", "--repo", str(repository))
    assert f"{'top_k = 4':<34}  {repository}/.kvd.toml:2\n    Chunks that a question may recall. (" in text
    assert kvd.ok("config", "get", "top_k", "--repo", str(repository)) == "4\n"
    assert kvd.ok("config", "get", "top_k") == "5\n"
    assert kvd.ok("config", "unset", "top_k") == f"{'top_k = 8':<34}  default\n"
    assert kvd.run("config", "unset", "top_k").stderr == f"kvd: top_k is not set in {paths.config_file()}\n"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["get", "modle"], "there is no setting 'modle'", "known: n_ctx, parallel, budget, "),
        (["unset", "modle"], "there is no setting 'modle'", "known: n_ctx, parallel, budget, "),
        (["set", "n_ctx", "many"], "n_ctx must be a whole number, not 'many'", "kvd config set n_ctx 8192"),
        (["set", "gpu_layers", "-2"], "gpu_layers must be between -1 and 1000, not -2", "kvd config set gpu_layers -1"),
        (["set", "watch", "2"], "watch must be true or false, not '2'", "kvd config set watch true"),
        (["set", "n_ctx"], "Missing argument 'VALUE'", "kvd config set --help"),
    ],
)
def test_wrong_usage_is_one_line(kvd: Kvd, arguments: list[str], message: str, hint: str) -> None:
    done = kvd.run("config", *arguments)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first == f"kvd: {message}"
    assert second.startswith(f"hint: {hint}")
    assert not paths.config_file().exists()


def test_a_request_takes_the_environment_of_its_command(
    kvd: Kvd, fake_daemon: FakeDaemon, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(*arguments: str) -> int:
        return len(kvd.json("search", "session paint", "--repo", str(repository), *arguments)["sources"])

    every = count()
    assert every > 2
    (repository / ".kvd.toml").write_text("top_k = 1\n")
    assert count() == 1
    monkeypatch.setenv("KVD_TOP_K", "2")
    assert count() == 2
    assert count("--top-k", str(every)) == every
    monkeypatch.setenv("KVD_TOP_K", "0")
    done = kvd.run("search", "session", "--repo", str(repository))
    assert (done.returncode, done.stderr) == (
        2,
        "kvd: KVD_TOP_K must be between 1 and 200, not 0\nhint: unset KVD_TOP_K\n",
    )


def test_what_has_not_reached_the_daemon_is_said(
    kvd: Kvd, fake_daemon: FakeDaemon, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVD_N_CTX", "4096")
    done = kvd.run("search", "session", "--repo", str(repository))
    assert done.returncode == 0
    assert done.stderr.startswith("kvd: KVD_N_CTX=4096 does not reach the daemon that runs (kvd stop ends it")
    assert rows(kvd)["n_ctx"]["value"] == 8192
    kvd.ok("stop")
    kvd.ok("start")
    assert kvd.run("start").stderr == ""
    monkeypatch.delenv("KVD_N_CTX")
    row = rows(kvd)["n_ctx"]
    assert (row["value"], row["where"]) == (4096, "KVD_N_CTX of the daemon")


def test_a_mistake_in_one_repository_is_no_other_ones(
    kvd: Kvd, fake_daemon: FakeDaemon, repository: Path, isolated_home: Path
) -> None:
    other = isolated_home / "other"
    other.mkdir()
    (other / "one.py").write_text("def session(): pass\n")
    subprocess.run(["git", "init", "-q"], cwd=other, check=True)
    (repository / ".kvd.toml").write_text("# ours\nn_ctx = 1024\n")
    for command in (["search", "session"], ["ask", "session"], ["index", str(repository)]):
        repo = [] if command[0] == "index" else ["--repo", str(repository)]
        done = kvd.run(*command, *repo)
        assert done.returncode == 2
        assert done.stderr == (
            f"kvd: {repository}/.kvd.toml:2: a repository can't set n_ctx, only you can: kvd config set n_ctx VALUE\n"
            f"hint: edit {repository}/.kvd.toml\n"
        )
    assert kvd.json("search", "session", "--repo", str(other))["sources"]
    assert kvd.json("status")["settings_error"] == ""


def test_what_a_request_says_goes_before_the_settings() -> None:
    settings = Settings(reuse=False, rerank_ms=500)
    assert _applied(Question("", 0.0), settings) == settings
    assert _applied(Question("", 0.0, reuse=True, rerank_ms=0), settings) == Settings(reuse=True, rerank_ms=0)
    # What is computed afresh once is no reason to load the model anew.
    assert _applied(Question("", 0.0, reuse=False), Settings()).reuse


def test_an_embedder_that_could_not_be_used_is_refused_and_nothing_written(kvd: Kvd, repository: Path) -> None:
    wrong = repository / "src"
    for value, words in (("/nowhere", "can't read the embedder"), ("model.gguf", "absolute"), (str(wrong), "embedder")):
        done = kvd.run("config", "set", "embedder", value)
        assert (done.returncode > 0, words in done.stderr, done.stdout) == (True, True, ""), done
    assert not paths.config_file().exists()
    assert kvd.run("config", "--repo", "/nowhere/at/all").returncode == 5


def test_a_variable_that_means_nothing_is_told_of(
    kvd: Kvd, repository: Path, fake_daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVD_TOPK", "3")
    monkeypatch.setenv("KVD_HOOKS", "0")
    done = kvd.run("search", "session", cwd=repository)
    assert "there is no setting KVD_TOPK: did you mean KVD_TOP_K?" in done.stderr
    assert "KVD_HOOKS" not in done.stderr
