"""Sessions through the service: real stores and indexes, the scripted engine."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from kvd import paths
from kvd.errors import KvdError, UsageError
from kvd.service.follow_up import blended
from kvd.service.service import Service
from kvd.sessions.store import SessionStore
from kvd.types import Chunk, Hit

from .test_service import Values, question, run


async def ask(service: Service, repo: Path, text: str, session: str = "talk") -> dict[str, Any]:
    return await service.ask(str(repo), question(text, session=session), lambda value: None)


def stored_keys() -> set[str]:
    db = apsw.Connection(str(paths.store_file()), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return {bytes(key).hex() for (key,) in db.execute("SELECT key FROM blocks")}
    finally:
        db.close()


async def written(service: Service) -> set[str]:
    """The blocks in the store, once all is written that was handed over."""
    assert await asyncio.to_thread(service._writer.flush, 10.0)
    return stored_keys()


def key_of(turn: int) -> str:
    """How the scripted engine calls a turn's block."""
    return f"{turn:02x}" * 32


def test_turns_follow_one_upon_the_other(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        first = await ask(service, repository, "history of sessions that expire")
        assert (first["session"], first["conversation"]["turn"]) == ("talk", 1)
        new = len(first["sources"])
        assert first["answer"] == f"0 before, {new} new, 0 present"
        second = await ask(service, repository, "history of sessions that expire")
        # The same code is recalled, and not added again; it is a source all the same.
        assert second["answer"] == f"1 before, 0 new, {new} present"
        assert [s["path"] for s in second["sources"]] == [s["path"] for s in first["sources"]]
        shown = await service.conversations.show(repository, "talk")
        assert [turn["question"] for turn in shown["turns"]] == ["history of sessions that expire"] * 2
        assert (shown["model"], shown["turns"][1]["answer"]) == ("fake", second["answer"])
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True, check=True)
        assert shown["turns"][0]["commit"] == head.stdout.strip()
        # Of one conversation's blocks that of the last turn is left.
        assert await written(service) == {key_of(2)}

    run(body)


def test_labels_go_on_and_cite_what_is_in_the_prompt(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        before = await ask(service, repository, "say nothing of sessions that expire")
        result = await ask(service, repository, "say it is in [1] and in [77], as before: paintRectangle")
        assert [source["label"] for source in result["sources"] if source["cited"]] == [1]
        # A chunk keeps its label from turn to turn.
        first, second = ({s["path"]: s["label"] for s in of["sources"]} for of in (before, result))
        assert first.items() <= second.items()
        assert sorted(second.values()) == list(range(1, len(result["sources"]) + 1))

    run(body)


def test_what_has_left_the_prompt_is_not_sent_again(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        for _ in range(3):
            await ask(service, repository, "say something of sessions that expire")
        await ask(service, repository, "full of sessions that expire")
        # The code that came with the first turn has left, that turn number 4 brought in is there.
        told = await ask(service, repository, "history of sessions that expire")
        count = len(told["sources"]) + len(told["memories"])
        assert told["answer"] == f"1 before, {count} new, 0 present"
        # What was said in the turns that have left can be recalled.
        assert {(memory["session"], memory["turn"] <= 3) for memory in told["memories"]} == {("talk", True)}
        again = await ask(service, repository, "history of sessions that expire")
        assert again["answer"] == f"2 before, 0 new, {count} present"
        shown = await service.conversations.show(repository, "talk")
        assert (len(shown["turns"]), shown["first_turn"], shown["summary"]) == (6, 4, "what was said")

    run(body)


def test_folders_and_notes_are_ahead_of_every_conversation(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        told = (await ask(service, repository, "pinned for sessions that expire"))["answer"]
        assert told.startswith("Folders of this repository: ")
        assert "src (" in told
        assert "Notes" not in told
        await service.conversations.add_note(repository, "ids are never used again")
        told = (await ask(service, repository, "pinned for sessions that expire", "other"))["answer"]
        assert told.splitlines()[1:] == ["Notes of the user:", "1. ids are never used again"]

    run(body)


def test_a_changed_file_is_new_to_the_conversation(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        await ask(service, repository, "history of sessions that expire")
        file = repository / "src" / "session.py"
        file.write_text(file.read_text().replace("lifetime", "duration"))
        again = await ask(service, repository, "history of sessions that expire")
        assert ", 1 new, " in again["answer"]

    run(body)


def test_a_follow_up_that_recalls_nothing_is_asked_all_the_same(isolated_home: Path, fake_model: Path) -> None:
    root = isolated_home / "small"
    root.mkdir()

    async def body(service: Service, values: Values) -> None:
        nothing = await ask(service, root, "history of sessions")
        assert (nothing["model"], nothing["session"], nothing["conversation"]) == (None, "talk", None)
        (root / "a.py").write_text("def session_expired():\n    return True\n")
        assert (await ask(service, root, "history of session_expired"))["conversation"]["turn"] == 1
        (root / "a.py").unlink()
        assert (await ask(service, root, "history of xyzzy"))["answer"] == "1 before, 0 new, 0 present"

    run(body)


def test_questions_to_one_session_wait_for_each_other(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        asked = [ask(service, repository, "history of sessions that expire") for _ in range(4)]
        others = [ask(service, repository, "history of sessions", f"other-{n}") for n in range(2)]
        results = await asyncio.gather(*asked, *others)
        assert sorted(result["conversation"]["turn"] for result in results[:4]) == [1, 2, 3, 4]
        assert [result["conversation"]["turn"] for result in results[4:]] == [1, 1]

    run(body)


def test_a_turn_that_fails_or_is_cancelled_leaves_nothing(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        await ask(service, repository, "sessions that expire")
        before = SessionStore(paths.sessions_file()).state(SessionStore(paths.sessions_file()).get(repository, "talk"))
        with pytest.raises(KvdError, match="no room"):
            await ask(service, repository, "fail at sessions that expire")
        task = asyncio.create_task(ask(service, repository, "slow words about sessions"))
        while not service._engine.running:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        session = SessionStore(paths.sessions_file()).get(repository, "talk")
        assert (session.turns, SessionStore(paths.sessions_file()).state(session)) == (1, before)
        assert (await ask(service, repository, "history of sessions"))["conversation"]["turn"] == 2

    run(body)


def test_forks_keep_what_they_share(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        await ask(service, repository, "sessions that expire")
        fork = await service.conversations.fork(repository, "talk", "fork")
        assert (fork["parent"], fork["turns"]) == ("talk", 1)
        # The fork still needs the first turn's block.
        await ask(service, repository, "sessions that expire")
        assert await written(service) == {key_of(1), key_of(2)}
        assert (await ask(service, repository, "history of it", "fork"))["answer"].startswith("1 before")
        await service.conversations.delete(repository, "talk")
        assert key_of(2) in await written(service)
        await service.conversations.delete(repository, "fork")
        assert await written(service) == set()

    run(body)


def test_deleting_takes_everything_along(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        await ask(service, repository, "say something quite unmistakable about sessions that expire")
        await service.conversations.delete(repository, "talk")
        assert await written(service) == set()
        with pytest.raises(UsageError, match="no session"):
            await service.conversations.show(repository, "talk")
        for folder in (paths.data_dir(), paths.cache_dir()):
            for file in folder.rglob("*.db*"):
                assert b"quite unmistakable" not in file.read_bytes()

    run(body)


def test_another_repository_has_other_sessions(repository: Path, fake_model: Path, isolated_home: Path) -> None:
    other = isolated_home / "other"
    other.mkdir()
    (other / "a.py").write_text("def session_expired():\n    return True\n")

    async def body(service: Service, values: Values) -> None:
        await ask(service, repository, "sessions that expire")
        assert (await ask(service, other, "history of session_expired"))["answer"].startswith("0 before")
        assert [s["turns"] for s in (await service.conversations.all_of(other))["sessions"]] == [1]

    run(body)


def test_old_sessions_are_deleted(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        long_ago = SessionStore(paths.sessions_file(), lambda: time.time() - 366 * 86_400)
        long_ago.create(repository, "old")
        await ask(service, repository, "sessions that expire", "new")
        await service.delete_old_sessions()
        assert [s["name"] for s in (await service.conversations.all_of(repository))["sessions"]] == ["new"]

    run(body)


def hit(path: str, score: float) -> Hit:
    return Hit(Chunk(path, "python", "", 1, 2, 0, 0, path), score)


def test_the_question_before_counts_less() -> None:
    now = [hit("a", 2.0), hit("b", 1.0)]
    before = [hit("c", 10.0), hit("b", 9.0)]
    found = blended(now, before)
    assert [item.chunk.path for item in found] == ["a", "b", "c"]
    assert found[2].score == pytest.approx(0.8)
    assert blended(now, []) == now
    assert [item.chunk.path for item in blended([], before)] == ["c", "b"]


def test_a_state_of_another_format_is_not_read(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        await ask(service, repository, "say something of sessions that expire")
        db = apsw.Connection(str(paths.sessions_file()))
        db.execute('UPDATE sessions SET state = \'{"format": 0, "other": 1}\'')
        db.close()
        again = await ask(service, repository, "history of sessions that expire")
        # The text is sent, from which the engine makes its own.
        assert again["answer"].startswith("1 before")
        assert (await service.conversations.show(repository, "talk"))["first_turn"] == 1
        await service.conversations.delete(repository, "talk")

    run(body)
