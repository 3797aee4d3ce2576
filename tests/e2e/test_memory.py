"""What was said in one conversation is recalled in another: the real command, daemon, engine child and small model."""

from __future__ import annotations

import time
from pathlib import Path

import apsw
import pytest

from kvd import paths
from kvd.sessions.records import Turn
from kvd.sessions.store import SessionStore
from tests.conftest import Kvd, poll

from .test_main_job import settings as settings

ASKED = "What did we find out about the retry logic last week?"
WEEK = 7 * 86_400.0


def blocks() -> set[bytes]:
    """Keys of the KV that is on disk."""
    db = apsw.Connection(str(paths.store_file()), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return {bytes(key) for (key,) in db.execute("SELECT key FROM blocks")}
    finally:
        db.close()


def quoted() -> set[bytes]:
    """Keys of the KV of turns that were recalled."""
    db = apsw.Connection(str(paths.sessions_file()), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return {bytes(key) for (key,) in db.execute("SELECT key FROM quoted_blocks")}
    finally:
        db.close()


@pytest.mark.slow
@pytest.mark.usefixtures("settings")
def test_what_was_said_last_week_is_in_a_new_conversations_prompt(kvd: Kvd, repository: Path) -> None:
    store = SessionStore(paths.sessions_file())
    for weeks, answer in ((1, "It doubles its pause after each attempt."), (3, "It does not wait at all.")):
        session = store.create(repository, f"weeks-{weeks}")
        question = "How does the retry logic wait between attempts?"
        turn = Turn(1, question, answer, "stop", time.time() - weeks * WEEK)
        store.add_turn(session, turn, [], "", ("smollm2-135m", "ab" * 32))

    result = kvd.json("ask", ASKED, "--session", "new", cwd=repository, timeout=240)
    assert [memory["session"] for memory in result["memories"]] == ["weeks-1"]
    assert result["sources"] == []
    new = store.get(repository, "new")
    (chunk,) = store.chunks(new)
    assert chunk.text == f"Question: {question}\nAnswer: It doubles its pause after each attempt."
    assert chunk.path.startswith("earlier conversation weeks-1, turn 1, 20")
    assert result["tokens"]["recalled"] == result["tokens"]["prefilled"] > 0

    # Its KV is found by what it says, wherever it is recalled.
    again = kvd.json("ask", ASKED, "--session", "newer", cwd=repository, timeout=120)
    assert again["tokens"]["prefilled"] == 0
    assert again["tokens"]["recalled"] == result["tokens"]["recalled"]

    kept = quoted()
    assert kept
    poll(lambda: kept <= blocks())
    kvd.ok("sessions", "delete", "weeks-1", cwd=repository)
    assert store.chunks(new) == []
    follow_up = kvd.json("ask", "And what else?", "--session", "new", cwd=repository, timeout=120)
    assert (follow_up["conversation"]["turn"], follow_up["memories"]) == (2, [])
    poll(lambda: not kept & blocks())
    for file in paths.sessions_file().parent.glob("sessions.db*"):
        assert b"doubles its pause" not in file.read_bytes()
