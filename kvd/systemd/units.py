"""The unit files: their text, where they belong, and systemctl."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from kvd import paths
from kvd.errors import KvdError, StoreError, UsageError
from kvd.models.files import write_atomically
from kvd.regular import read_small

SOCKET, SERVICE = "kvd.socket", "kvd.service"
UNITS = (SOCKET, SERVICE)

RELOAD = ("daemon-reload",)
ENABLE = ("enable", "--now", SOCKET)
DISABLE = ("disable", "--now", SOCKET)
STOP = ("stop", SERVICE)

_MARK = "# Written by `kvd service install`."
_KEPT = ("PATH", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
"""Variables that the daemon needs as they are here: to find git, and the folders that the commands use."""

_SECONDS = 60.0


def folder() -> Path:
    """Where the user's units are."""
    return paths.config_home() / "systemd" / "user"


def text_of(unit: str) -> str:
    """What `install` writes: for this Python, with this environment's folders."""
    kept = [(name, os.environ.get(name, "")) for name in _KEPT]
    environment = [f"Environment={_quoted(f'{name}={value}')}" for name, value in kept if value]
    text = files("kvd.systemd").joinpath(unit).read_text("utf-8")
    text = text.replace("@PYTHON@", _quoted(sys.executable, command=True))
    return text.replace("@ENVIRONMENT@\n", "".join(f"{line}\n" for line in environment))


def state_of(unit: str) -> str:
    """Whether its file is "installed", "missing", "outdated" (of another Python or kvd) or "foreign"."""
    try:
        found = read_small(folder() / unit).decode("utf-8", "replace")
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "foreign"
    if not found.startswith(_MARK):
        return "foreign"
    return "installed" if found == text_of(unit) else "outdated"


def write() -> None:
    """Write both files. Raises `UsageError` where one that kvd has not written is in the way, `StoreError`."""
    _check_ours()
    try:
        folder().mkdir(parents=True, exist_ok=True)
        for unit in UNITS:
            write_atomically(folder() / unit, text_of(unit).encode("utf-8"), 0o644)
    except OSError as error:
        raise StoreError(f"can't write to {folder()}: {error.strerror}", hint=f"check {folder()}") from error


def remove() -> list[str]:
    """Remove the files that are there; their names. Raises as `write`."""
    _check_ours()
    found = [unit for unit in UNITS if state_of(unit) != "missing"]
    try:
        for unit in found:
            (folder() / unit).unlink()
    except OSError as error:
        raise StoreError(f"can't remove from {folder()}: {error.strerror}", hint=f"check {folder()}") from error
    return found


def check_system() -> None:
    """Raises `KvdError` where there can be no systemd."""
    if sys.platform != "linux":
        raise KvdError("services are for systemd; launchd is not supported yet", hint="kvd start")


def has_systemctl() -> bool:
    return shutil.which("systemctl") is not None


def systemctl(arguments: Sequence[str], then: Sequence[Sequence[str]] = ()) -> None:
    """Run `systemctl --user`. Raises `KvdError` with what it said; the hint is the command with those that follow."""
    done = _run(arguments)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit status {done.returncode}"
        raise KvdError(f"systemctl failed: {said}", hint=typed(arguments, *then))


def answer_of(*arguments: str) -> str:
    """The first line that `systemctl --user` prints, such as "active"; "unknown" where it says nothing."""
    return (_run(arguments).stdout.splitlines() or ["unknown"])[0]


def typed(*commands: Sequence[str]) -> str:
    """Commands of systemctl as people type them."""
    return " && ".join(" ".join(["systemctl --user", *arguments]) for arguments in commands)


def _run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = ["systemctl", "--user", "--no-pager", *arguments]
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KvdError(f"systemctl can't be used: {error}", hint=typed(arguments)) from error


def _check_ours() -> None:
    for unit in UNITS:
        if state_of(unit) == "foreign":
            raise UsageError(f"{folder() / unit} is not kvd's", hint=f"move it away: {folder() / unit}")


def _quoted(text: str, command: bool = False) -> str:
    """As systemd reads it back (systemd.syntax(7)): `%` are specifiers, and in commands `$` are variables."""
    if "\n" in text or "\r" in text:
        raise UsageError(f"a line break in {text!r}", hint="kvd service install, from another environment")
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text.replace("$", "$$") if command else text}"'
