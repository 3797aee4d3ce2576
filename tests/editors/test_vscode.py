"""The extension for VS Code: its client against a real daemon, by Node's own test runner, and its package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kvd as package
from kvd import paths
from tests.conftest import FakeDaemon, Kvd
from tests.editors.editor import command

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "editors" / "vscode"
OLDEST = 20


@cache
def why_not() -> str:
    """Why the extension can't be built and tested here, or ""."""
    node = shutil.which("node")
    if node is None:
        return "no node in PATH"
    said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    found = re.match(r"v(\d+)\.", said)
    if found is None or int(found[1]) < OLDEST:
        return f"node in PATH is {said.strip() or 'broken'}, older than {OLDEST}"
    if not (EXTENSION / "node_modules" / ".package-lock.json").exists():
        return "editors/vscode has no node_modules: run npm ci there"
    return ""


needs_node = pytest.mark.skipif(bool(why_not()), reason=why_not())


def node(*arguments: str, env: dict[str, str] | None = None) -> None:
    """Runs it in the extension's folder; fails with what it said."""
    done = subprocess.run(
        ["node", *arguments],
        cwd=EXTENSION,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def built() -> None:
    node("esbuild.mjs")


@pytest.fixture
def check(built: None, isolated_home: Path, repository: Path) -> Callable[..., None]:
    """Runs the tests of a file in `editors/vscode/test`."""

    def run(name: str, program: Path | None = None, **given: str) -> None:
        env = {f"TEST_{key.upper()}": value for key, value in given.items()}
        env |= {"TEST_REPOSITORY": str(repository), "TEST_PROGRAM": str(program or command(isolated_home))}
        node("--test", "--test-timeout=100000", "--test-reporter=spec", f"dist/test/{name}.test.js", env=env)

    return run


def fake_command(home: Path) -> Path:
    """A program `kvd` that starts daemons with the scripted engine."""
    program = home / "kvd"
    start = "from tests.conftest import FakeDaemon; FakeDaemon()"
    script = f"""#!/bin/sh
[ "$1" = start ] || exec "{sys.executable}" -m kvd_cli.main "$@"
PYTHONPATH="{ROOT}:$PYTHONPATH" exec "{sys.executable}" -c "{start}"
"""
    program.write_text(script)
    program.chmod(0o755)
    return program


@needs_node
def test_what_needs_no_daemon(check: Callable[..., None], isolated_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep, shared = isolated_home / ("d" * 90), isolated_home / "shared"
    for folder in (deep, shared):
        folder.mkdir(mode=0o700)
    places = {}
    for runtime in (str(isolated_home / "run"), str(deep), "relative", ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        places[runtime] = os.fspath(paths.socket_file())
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shared))
    (shared / "kvd").mkdir()
    (shared / "kvd").chmod(0o777)
    check("plain", sockets=json.dumps(places), open_folder=str(shared / "kvd"))


@needs_node
def test_conversations(check: Callable[..., None], isolated_home: Path, kvd: Kvd, fake_model: Path) -> None:
    check("conversation", fake_command(isolated_home))


@needs_node
def test_starting_and_replacing(check: Callable[..., None], kvd: Kvd, fake_model: Path) -> None:
    old = FakeDaemon("0.0.1")
    try:
        check("start")
    finally:
        old.end()


def manifest() -> dict[str, Any]:
    read = json.loads((EXTENSION / "package.json").read_text())
    assert isinstance(read, dict)
    return read


def test_it_is_of_this_version() -> None:
    lock = json.loads((EXTENSION / "package-lock.json").read_text())
    assert {manifest()["version"], lock["version"], lock["packages"][""]["version"]} == {package.__version__}
    assert (EXTENSION / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_what_is_fetched_is_pinned() -> None:
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in manifest()["devDependencies"].values())
    lock = json.loads((EXTENSION / "package-lock.json").read_text())
    assert [name for name, entry in lock["packages"].items() if name and "integrity" not in entry] == []


def test_every_command_and_setting_is_documented_and_there() -> None:
    contributes, readme = manifest()["contributes"], (EXTENSION / "README.md").read_text()
    listed = re.search(
        r"function commands.*?^}", (EXTENSION / "src/extension.ts").read_text(), re.DOTALL | re.MULTILINE
    )
    assert listed is not None
    there = {f"kvd.{name}" for name in re.findall(r"^    (\w+): ", listed[0], re.MULTILINE)}
    assert {entry["command"] for entry in contributes["commands"]} == there
    assert [entry["title"] for entry in contributes["commands"] if f"`kvd: {entry['title']}`" not in readme] == []
    settings = set(contributes["configuration"]["properties"])
    assert {name for name in settings if f"`{name}`" not in readme} == set()
    # A workspace that nobody trusts sets none of them.
    assert set(manifest()["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"]) == settings


def test_modules_are_small() -> None:
    files = [*EXTENSION.glob("src/**/*.ts"), *EXTENSION.glob("test/*.ts"), EXTENSION / "media" / "panel.css"]
    assert {file.name for file in files if len(file.read_text().splitlines()) > 300} == set()


@needs_node
def test_the_package_has_what_is_needed_and_no_more(isolated_home: Path) -> None:
    out = isolated_home / "kvd.vsix"
    script = manifest()["scripts"]["package"].removesuffix("kvd.vsix") + str(out)
    vsce, *options = script.split()
    assert vsce == "vsce"
    node("node_modules/@vscode/vsce/vsce", *options)
    with zipfile.ZipFile(out) as archive:
        names = {name.removeprefix("extension/") for name in archive.namelist() if name.startswith("extension/")}
        code = archive.read("extension/dist/extension.js").decode()
        notices = archive.read("extension/dist/NOTICES.txt").decode()
    assert {name.lower() for name in names} == {
        *("dist/extension.js", "dist/panel.js", "dist/notices.txt", "media/kvd.svg", "media/panel.css"),
        *("package.json", "readme.md", "license.txt"),
    }
    assert "sourceMappingURL=data:" not in code
    assert {line.split()[0] for line in notices.splitlines() if re.fullmatch(r"[\w-]+ \d+\.\d+\.\d+", line)} >= {
        *("markdown-it", "vscode-jsonrpc"),
    }
    assert out.stat().st_size < 500_000
