"""The units, and `kvd service` with a systemctl that only notes what it is told."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kvd import paths
from kvd.errors import KvdError, UsageError
from kvd.systemd import units
from tests.conftest import FakeDaemon, Kvd

_FAILS = 'if [ "$3" = "{}" ]; then echo "no bus"; exit 1; fi\n'


def systemctl(home: Path, monkeypatch: pytest.MonkeyPatch, failing: str = "nothing") -> Path:
    """Put one on the path; returns the file with what it was told."""
    told = home / "told"
    program = home / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {told}\n{_FAILS.format(failing)}echo active\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return told


def lines(text: str) -> dict[str, str]:
    """What is not given several times."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def test_the_socket_is_where_commands_look_and_for_this_user_alone() -> None:
    found = lines(units.text_of("kvd.socket"))
    relative = paths.socket_file().relative_to(os.environ["XDG_RUNTIME_DIR"])
    assert found["ListenStream"] == f"%t/{relative}"
    assert (found["SocketMode"], found["DirectoryMode"]) == ("0600", "0700")
    assert found["WantedBy"] == "sockets.target"


def test_the_daemon_gets_this_python_and_these_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", '/a b/50%/"q"/$x\\y')
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(sys, "executable", "/opt/my $py/bin/python")
    text = units.text_of("kvd.service")
    assert lines(text)["ExecStart"] == '"/opt/my $$py/bin/python" -P -m kvd.daemon'
    assert 'Environment="XDG_DATA_HOME=/a b/50%%/\\"q\\"/$x\\\\y"\n' in text
    assert f'Environment="PATH={os.environ["PATH"]}"\n' in text
    assert "XDG_STATE_HOME" not in text
    assert "@" not in text
    monkeypatch.setenv("XDG_DATA_HOME", "/a\nExecStart=/bin/sh")
    with pytest.raises(UsageError, match="a line break"):
        units.text_of("kvd.service")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_units(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", f'{tmp_path}/a b/50%/"q"')
    units.write()

    def verify() -> tuple[int, str]:
        command = ["systemd-analyze", "--user", "verify", *(str(units.folder() / unit) for unit in units.UNITS)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60.0)
        return done.returncode, done.stderr

    assert verify() == (0, "")
    socket = units.folder() / units.SOCKET
    socket.write_text(socket.read_text().replace("%t/", "t/"))
    assert verify() != (0, "")


def test_install_and_uninstall(
    kvd: Kvd, fake_daemon: FakeDaemon, isolated_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = systemctl(isolated_home, monkeypatch)
    said = kvd.ok("service", "install")
    assert said.splitlines()[0] == f"wrote kvd.socket and kvd.service in {units.folder()}"
    # A daemon that listened there would have lost its socket.
    assert fake_daemon.process.wait(10.0) == 0
    for unit in units.UNITS:
        file = units.folder() / unit
        assert file.read_text() == units.text_of(unit)
        assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert told.read_text().splitlines() == [
        "--user --no-pager daemon-reload",
        "--user --no-pager enable --now kvd.socket",
    ]
    state = kvd.json("service", "status")
    assert {unit: found["state"] for unit, found in state["units"].items()} == dict.fromkeys(units.UNITS, "installed")
    assert state["units"]["kvd.socket"]["active"] == "active"
    assert state["running"] is False
    told.unlink()
    assert kvd.ok("service", "uninstall") == f"removed kvd.socket and kvd.service from {units.folder()}\n"
    assert [line.split(maxsplit=2)[2] for line in told.read_text().splitlines()] == [
        "disable --now kvd.socket",
        "stop kvd.service",
        "daemon-reload",
    ]
    assert kvd.ok("service", "uninstall") == "not installed\n"


def test_without_systemctl_one_is_told_what_to_type(kvd: Kvd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    said = kvd.ok("service", "install")
    assert "systemctl --user daemon-reload && systemctl --user enable --now kvd.socket" in said
    assert {units.state_of(unit) for unit in units.UNITS} == {"installed"}


def test_where_systemd_cannot_be_reached_it_is_said(
    kvd: Kvd, isolated_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl(isolated_home, monkeypatch, failing="daemon-reload")
    done = kvd.run("service", "install")
    assert done.returncode == 1
    assert done.stderr == (
        "kvd: systemctl failed: no bus\n"
        "hint: systemctl --user daemon-reload && systemctl --user enable --now kvd.socket\n"
    )


def test_somebody_elses_unit_is_left_alone() -> None:
    file = units.folder() / units.SERVICE
    file.parent.mkdir(parents=True)
    file.write_text("[Service]\nExecStart=/usr/bin/kvd-of-mine\n")
    assert units.state_of(units.SERVICE) == "foreign"
    for change in (units.write, units.remove):
        with pytest.raises(UsageError, match="is not kvd's"):
            change()
    assert "kvd-of-mine" in file.read_text()


def test_units_of_another_python_are_outdated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert units.state_of(units.SERVICE) == "missing"
    units.write()
    monkeypatch.setattr(sys, "executable", "/elsewhere/python")
    assert [units.state_of(unit) for unit in units.UNITS] == ["installed", "outdated"]


def test_macos_has_no_services_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(KvdError, match="launchd is not supported yet"):
        units.check_system()
