"""No command but `setup` opens a socket that leads anywhere but to the daemon: every Python process is listened to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvd import paths
from tests.conftest import FakeDaemon, Kvd
from tests.fakes.tiny_bert import write_tiny_bert

LISTENER = """
import os, socket, sys

LOG = {log!r}

def say(text):
    with open(LOG, "a") as file:
        file.write(text + "\\n")

def hook(event, args):
    if event == "socket.__new__" and args[1] not in (socket.AF_UNIX, -1):
        say(f"family {{args[1]!r}} in {{sys.argv}}")
    elif event in ("socket.connect", "socket.bind", "socket.sendto") and not isinstance(args[1], (str, bytes)):
        say(f"{{event}} {{args[1]!r}} in {{sys.argv}}")
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "urllib.Request"):
        say(f"{{event}} {{args!r}} in {{sys.argv}}")

sys.addaudithook(hook)
say(f"process {{' '.join(sys.orig_argv)}}")
"""


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What Python processes of this test and their children do with sockets, line by line."""
    log = tmp_path / "log"
    log.touch()
    (tmp_path / "sitecustomize.py").write_text(LISTENER.format(log=str(log)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")])))
    return log


@pytest.fixture(params=["scripted", pytest.param("real", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, kvd: Kvd, heard: Path) -> Iterator[str]:
    """What the daemon has for an engine, and what its process is called."""
    if request.param == "real":
        yield "-m kvd.worker"
        return
    request.getfixturevalue("fake_model")
    daemon = FakeDaemon()
    yield "fakes/engine_child.py"
    kvd.stop_daemon()
    daemon.end()


def test_nothing_but_the_daemons_socket(kvd: Kvd, heard: Path, engine: str, repository: Path, tmp_path: Path) -> None:
    embedder = write_tiny_bert(tmp_path / "bert.gguf")
    paths.config_file().parent.mkdir(parents=True)
    paths.config_file().write_text(f'n_ctx = 1024\nreuse = false\nmax_tokens = 4\nembedder = "{embedder}"\n')
    where = ("--repo", str(repository))
    for command in (
        ("start",),
        ("index", str(repository)),
        ("search", "when is the session expired", *where),
        ("search", "when is the session expired", "--rerank", *where),
        ("ask", "when is the session expired", *where),
        ("status",),
        ("metrics",),
        ("logs",),
        ("gc",),
        ("stop",),
    ):
        kvd.ok(*command, timeout=250.0)
    lines = heard.read_text().splitlines()
    processes = [line for line in lines if line.startswith("process ")]
    for part in ("kvd_cli.main ask", "daemon", engine, "-m kvd.worker.embedding", "-m kvd.source.child"):
        assert any(part in process for process in processes), part
    assert [line for line in lines if not line.startswith("process ")] == []


def test_the_listener_hears(heard: Path) -> None:
    program = "import socket; socket.create_connection(('127.0.0.1', 9), 1)"
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    said = heard.read_text()
    assert "socket.getaddrinfo ('127.0.0.1', 9" in said
    assert "socket.connect ('127.0.0.1', 9)" in said
