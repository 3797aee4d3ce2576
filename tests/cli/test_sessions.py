"""`kvd ask --session`, `kvd sessions`, `kvd chat`, against a daemon with the scripted engine."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from pathlib import Path

from tests.conftest import FakeDaemon, Kvd, poll


def talk(kvd: Kvd, repository: Path, *lines: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """`kvd chat` with these lines as its input."""
    return subprocess.run(
        kvd.command("chat", *arguments),
        input="".join(f"{line}\n" for line in lines),
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_session_from_begin_to_end(kvd: Kvd, repository: Path, fake_daemon: FakeDaemon) -> None:
    asked = ("ask", "history of sessions that expire", "--session", "login")
    assert kvd.json(*asked, cwd=repository)["session"] == "login"
    assert kvd.json(*asked, cwd=repository)["answer"].startswith("1 before")
    assert kvd.ok("sessions", "fork", "login", "other", cwd=repository) == "other goes on from here\n"
    assert kvd.ok("sessions", "close", "other", cwd=repository) == "other is closed\n"
    other, login = kvd.ok("sessions", "list", cwd=repository).splitlines()
    assert other.startswith("other  2 turns  used ")
    assert other.endswith("from login  closed")
    assert login.startswith("login  2 turns")
    assert kvd.ok("sessions", "show", "login", cwd=repository).count("> history of sessions that expire") == 2
    assert kvd.ok("sessions", "delete", "login", cwd=repository) == "login is deleted\n"
    gone = kvd.run("sessions", "show", "login", cwd=repository)
    assert (gone.returncode, gone.stderr.splitlines()[1]) == (2, "hint: kvd sessions list")
    bad = kvd.json("ask", "sessions", "--session", "../x", cwd=repository)
    assert bad["error"]["code"] == "usage"


def test_nothing_that_was_said_is_lost_with_the_daemon(kvd: Kvd, repository: Path, fake_daemon: FakeDaemon) -> None:
    kvd.ok("ask", "history of sessions that expire", "--session", "login", cwd=repository)
    kvd.kill_daemon()
    fake_daemon.process.wait(10)
    again = FakeDaemon()
    try:
        told = kvd.json("ask", "history of sessions that expire", "--session", "login", cwd=repository)
        assert told["answer"].startswith("1 before, 0 new")
    finally:
        kvd.stop_daemon()
        again.end()


def test_a_chat_of_piped_lines(kvd: Kvd, repository: Path, fake_daemon: FakeDaemon) -> None:
    done = talk(kvd, repository, "history of sessions that expire", "", "/sources", "history of it", "/help")
    assert done.returncode == 0, done.stderr
    assert "0 before" in done.stdout
    assert "1 before" in done.stdout
    assert done.stdout.count("src/session.py:1-12") >= 3
    assert "/delete" in done.stdout
    more = talk(kvd, repository, "history of that", arguments=("--continue",))
    assert "2 before" in more.stdout
    forgotten = talk(kvd, repository, "/delete", "n", "/delete", "y", "not asked", arguments=("--continue",))
    assert forgotten.stdout.endswith("y/n\ndeleted\n")
    assert kvd.ok("sessions", "list", cwd=repository).startswith("no sessions")
    assert talk(kvd, repository, arguments=("--continue",)).returncode == 2


def test_what_was_said_is_found_and_recalled(kvd: Kvd, repository: Path, fake_daemon: FakeDaemon) -> None:
    assert kvd.ok("sessions", "search", "sessions that expire", cwd=repository) == "nothing found\n"
    kvd.ok("ask", "say Sessions expire in an hour.", "--session", "login", cwd=repository)
    place, asked, answer, _ = kvd.ok("sessions", "search", "sessions that expire", cwd=repository).split("\n", 3)
    assert place.startswith("login, turn 1, 20")
    assert (asked, answer) == ("> say Sessions expire in an hour.", "Sessions expire in an hour.")
    assert kvd.json("sessions", "search", "sessions last week", cwd=repository)["results"] == []
    assert kvd.json("sessions", "search", "expire", "--limit", "1", cwd=repository)["results"][0]["session"] == "login"
    shown = kvd.ok("ask", "do sessions expire in an hour?", "--session", "other", cwd=repository)
    assert f"    memory  {place}\n" in shown
    no_memory = {**os.environ, "KVD_MEMORY": "false"}
    done = subprocess.run(
        kvd.command("ask", "do sessions expire in an hour?", "--session", "third"),
        cwd=repository,
        env=no_memory,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "memory  " not in done.stdout


def test_notes(kvd: Kvd, repository: Path, fake_daemon: FakeDaemon, isolated_home: Path) -> None:
    assert kvd.ok("notes", "list", cwd=repository) == "no notes yet\n"
    assert kvd.ok("notes", "add", "sessions last\nan hour", cwd=repository) == "1  sessions last an hour\n"
    done = talk(
        kvd, repository, "/pin we use tabs", "history of sessions that expire", "/forget 1", "/memory", "/forget"
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "2  we use tabs"
    at = said.index("note 1 is deleted")
    assert said[at + 1] == "2  we use tabs"
    assert said[at + 2].endswith(": 1 turn, 30 tokens")
    assert "/pin TEXT" in said[at + 4]
    (note,) = kvd.json("notes", "list", cwd=repository)["notes"]
    assert (note["number"], note["text"]) == (2, "we use tabs")
    other = isolated_home / "other"
    other.mkdir()
    (other / "a.py").write_text("pass\n")
    assert kvd.ok("notes", "list", cwd=other) == "no notes yet\n"
    gone = kvd.run("notes", "delete", "1", cwd=repository)
    assert (gone.returncode, gone.stderr.splitlines()[1]) == (2, "hint: kvd notes list")
    assert kvd.ok("notes", "delete", "2", cwd=repository) == "note 2 is deleted\n"
    assert kvd.run("notes", "add", "x" * 1001, cwd=repository).returncode == 2
    bad = talk(kvd, repository, "/pin", "/forget 9")
    assert (bad.returncode, bad.stderr.count("kvd: ")) == (2, 2)


def test_a_failed_question_is_not_the_end_of_a_chat(kvd: Kvd, repository: Path, fake_daemon: FakeDaemon) -> None:
    done = talk(kvd, repository, "fail at sessions that expire", "history of sessions that expire")
    assert "0 before" in done.stdout
    assert (done.returncode, done.stderr.splitlines()[-2:]) == (1, ["kvd: no room", "hint: kvd setup"])


def test_ctrl_c_ends_the_answer_and_not_the_chat(kvd: Kvd, repository: Path, fake_daemon: FakeDaemon) -> None:
    kvd.ok("index", cwd=repository)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        kvd.command("chat", "--session", "login"), cwd=repository, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    seen = b""

    def saw(text: bytes, after: int = 0) -> bool:
        nonlocal seen
        try:
            seen += os.read(ours, 65536)
        except (BlockingIOError, OSError):
            time.sleep(0.01)
        return text in seen[after:]

    try:
        poll(lambda: saw(b"> "))
        os.write(ours, b"slow sessions that expire\n")
        poll(lambda: saw(b"word word"))
        process.send_signal(signal.SIGINT)
        poll(lambda: saw(b"interrupted"))
        mark = len(seen)
        os.write(ours, b"history of sessions that expire\n")
        poll(lambda: saw(b"0 before", mark))
        # What is typed while no line is read is the terminal's: there Ctrl-D would be no end.
        poll(lambda: saw(b"") and seen.endswith(b"> "))
        os.write(ours, b"\x04")
        assert process.wait(20) == 0
    finally:
        process.kill()
        os.close(ours)
