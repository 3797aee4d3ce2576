"""What every test gets: a home of its own, and the `kvd` command against a daemon of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvd.engine.machine import wait_briefly

_GIT_IDENTITY = {
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.invalid",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.invalid",
}


# Before any test loads llama.cpp into this process.
wait_briefly()


@pytest.fixture(autouse=True)
def isolated_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """HOME, XDG folders and git configuration in a short temporary folder (socket paths are limited)."""
    home = Path(tempfile.mkdtemp(prefix="kvd-t-", dir="/tmp"))
    for name in [name for name in os.environ if name.startswith(("GIT_", "XDG_", "KVD_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    for kind in ("CACHE", "DATA", "CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(home / kind.lower()))
    runtime = home / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name, value in _GIT_IDENTITY.items():
        monkeypatch.setenv(name, value)
    yield home
    shutil.rmtree(home, ignore_errors=True)


def poll(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait until `condition` holds; fail the test when it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


class Kvd:
    """The `kvd` command as people run it: another process, this test's environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *arguments: str, cwd: Path | None = None, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run to the end. Its stdout and stderr are pipes, so there are no bars and colours."""
        return subprocess.run(
            self.command(*arguments),
            cwd=cwd or self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def ok(self, *arguments: str, cwd: Path | None = None, timeout: float = 60.0) -> str:
        """stdout of a command that has to succeed."""
        done = self.run(*arguments, cwd=cwd, timeout=timeout)
        assert done.returncode == 0, done.stderr or done.stdout
        return done.stdout

    def json(self, *arguments: str, cwd: Path | None = None, timeout: float = 60.0) -> dict[str, Any]:
        """The one object that `--json` prints, whatever the exit status."""
        done = self.run(*arguments, "--json", cwd=cwd, timeout=timeout)
        value = json.loads(done.stdout)
        assert isinstance(value, dict)
        return value

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "kvd_cli.main", *arguments]

    def stop_daemon(self) -> None:
        """Stop the daemon at once, if one runs; kill it when it does not stop."""
        from kvd.errors import KvdError
        from kvd.rpc.client import Client
        from kvd.rpc.launch import try_connect

        try:
            sock = try_connect()
        except KvdError:
            # The test has made its folders unusable.
            return
        if sock is None:
            return
        with Client(sock) as client, contextlib.suppress(KvdError):
            client.call("shutdown", {"mode": "cancel"}, timeout=5.0)
            if client.wait_closed(20.0):
                return
        self.kill_daemon()

    @staticmethod
    def kill_daemon() -> None:
        """kill -9, if one runs."""
        from kvd.rpc.client import Client
        from kvd.rpc.launch import try_connect

        sock = try_connect()
        if sock is not None:
            with Client(sock) as client:
                client.kill()
                client.wait_closed(10.0)


@pytest.fixture
def kvd(isolated_home: Path) -> Iterator[Kvd]:
    """The command, in an empty folder of its own; the daemon that it starts is stopped afterwards."""
    folder = isolated_home / "work"
    folder.mkdir()
    command = Kvd(folder)
    yield command
    command.stop_daemon()


@pytest.fixture
def fake_model(isolated_home: Path) -> Path:
    """A file that counts as the model in use, for engines that do not look into it. Its name is `fake`."""
    file = isolated_home / "fake.gguf"
    file.write_bytes(b"GGUF and nothing else")
    use_model("fake", file)
    return file


def use_model(name: str, file: Path) -> None:
    """Make `file` the active model, unchecked."""
    from kvd import paths

    record = {"format": 1, "active": {"name": name, "path": str(file)}, "hashes": {}}
    (paths.models_dir() / "active.json").write_text(json.dumps(record))


class FakeDaemon:
    """A real daemon with the scripted engine of tests/fakes; `kvd` and `Client` reach it.

    `prefix`: a command that executes the rest of its arguments.
    """

    def __init__(self, version: str = "", prefix: Sequence[str] = ()) -> None:
        from kvd import paths

        program = Path(__file__).parent / "fakes" / "daemon.py"
        # As `kvd.rpc.launch` makes it.
        with open(paths.log_file(), "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, str(program), *([version] if version else [])],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        poll(self._listens)

    def _listens(self) -> bool:
        from kvd import paths
        from kvd.rpc.launch import try_connect

        assert self.process.poll() is None, paths.log_file().read_text()
        sock = try_connect()
        if sock is not None:
            sock.close()
        return sock is not None

    def end(self) -> None:
        self.process.terminate()
        self.process.terminate()
        try:
            self.process.wait(10.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10.0)


@pytest.fixture
def fake_daemon(kvd: Kvd, fake_model: Path) -> Iterator[FakeDaemon]:
    """It listens, and has a model."""
    daemon = FakeDaemon()
    yield daemon
    kvd.stop_daemon()
    daemon.end()


@pytest.fixture
def repository(isolated_home: Path) -> Path:
    """A small git repository in two languages, committed."""
    root = isolated_home / "repo"
    (root / "src").mkdir(parents=True)
    (root / "src" / "session.py").write_text(_SESSION)
    (root / "src" / "paint.js").write_text(_PAINT)
    (root / "README.md").write_text("# Example\n\nSessions that expire, and something that paints.\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=root, check=True, stdin=subprocess.DEVNULL)
    return root


_SESSION = '''"""Sessions."""

import time


class Session:
    def __init__(self, lifetime):
        self.expires_at = time.monotonic() + lifetime

    def is_expired(self):
        """True when the session's lifetime is over."""
        return time.monotonic() > self.expires_at
'''

_PAINT = """function paintRectangle(canvas, width, height) {
  const context = canvas.getContext("2d");
  context.fillRect(0, 0, width, height);
}
"""
