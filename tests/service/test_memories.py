"""What was said before is recalled: real stores and indexes, the scripted engine."""

from __future__ import annotations

import asyncio
import time
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kvd import paths
from kvd.config import Settings
from kvd.errors import KvdError
from kvd.recall.standing import standing
from kvd.service import memories
from kvd.service.asker import Question
from kvd.service.indexer import update_index
from kvd.service.memories import BEARS, Memories, shortened
from kvd.service.service import Service
from kvd.sessions.records import Memory, Turn
from kvd.sessions.store import SessionStore

from .test_conversations import ask, key_of, written
from .test_service import Values, question, run

QUESTIONS = Path(__file__).parents[1] / "bench" / "questions"
ROOT, OTHER = Path("/repo"), Path("/other")
NOW = 1_796_137_200.0
"""A Tuesday, 2026-12-01."""
DAY = 86_400.0

# The questions of tests/bench/questions in other words, one for each.
REPHRASED = {
    "axum": (
        "accept errors with too many open files",
        "stripping the prefix in nested routers",
        "Cached extractor and failures",
        "body size limit of 2 MB",
        "Allow header for 405",
        "how is graceful shutdown done",
        "Json extractor rejections and status codes",
        "Form extractor for HEAD",
        "invalid UTF-8 in path params",
    ),
    "click": (
        "what is the order of eager parameters",
        "parsing of -abc style short flags",
        "keep a help paragraph from being rewrapped",
        "precedence of env var, default_map and prompt for option values",
        "shell completion request handling",
        "who closes click.File handles",
        "atomic file writing and exceptions",
        "exit codes that CliRunner reports",
        "broken pipe handling",
    ),
    "cobra": (
        "reproducible man page dates",
        "COBRA_ACTIVE_HELP",
        "the hidden completion command",
        "did you mean suggestions",
        "persistent flags of parents",
        "mutually exclusive flags",
        "PersistentPreRun not running for subcommands",
        "SilenceErrors and SilenceUsage",
        "boolean flag before subcommand is swallowed",
    ),
    "flask": (
        "Which error handler takes precedence in Flask, the one for the class or the one for the code?",
        "how is the app discovered by the flask CLI",
        "reading configuration out of environment variables",
        "what did we find out about the signing of session cookies?",
        "nested blueprints: what do url prefixes look like",
        "streaming a response and the context",
        "when does an unhandled error propagate rather than become a 500",
        "missing SECRET_KEY",
        "FormDataRoutingRedirect",
    ),
    "gson": (
        "runtime type versus declared type when serializing",
        "creating instances without no-args constructor",
        "accepted date patterns",
        "recursive types and adapters",
        "where nulls get skipped",
        "map keys that are integers",
        "duplicate field names",
        "trailing data in fromJson",
        "maximum nesting depth",
    ),
    "zod": (
        "priority of custom error messages",
        "instanceof checks without inheritance",
        "multipleOf floating point rounding",
        "JIT compiled object parsing and eval",
        "recursive schemas to JSON Schema",
        "encode with transform throws",
        "discriminated union without a match",
        "refinements skipped after a type error",
        "circular $ref in fromJSONSchema",
    ),
}


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path / "sessions.db")


def say(store: SessionStore, root: Path, name: str, text: str, answer: str, at: float = NOW) -> None:
    session = store.get_or_create(root, name)
    turn = Turn(session.turns + 1, text, answer, "stop", at)
    store.add_turn(session, turn, [], "", ("fake", "ab" * 32))


def found(store: SessionStore, query: str, root: Path = ROOT, most: int = 5, **more: Any) -> list[Memory]:
    return asyncio.run(Memories(store.path, lambda: NOW).find(root, query, most, **more))


def test_what_is_asked_in_other_words_is_found_and_what_was_not_said_is_not(store: SessionStore) -> None:
    """Half of each repository's turns are said in one place, half in another: questions are asked in both."""
    missed, wrong, asked = [], [], 0
    for name, rephrased in REPHRASED.items():
        said = tomllib.loads((QUESTIONS / f"{name}.toml").read_text("utf-8"))["questions"]
        for number, turn in enumerate(said):
            say(store, Path(f"/{name}/{number % 2}"), "talk", turn["question"], turn["answer"])
        for number, (text, turn) in enumerate(zip(rephrased, said, strict=True)):
            asked += 1
            here = found(store, text, Path(f"/{name}/{number % 2}"), floor=BEARS)
            missed += [] if here and here[0].question == turn["question"] else [text]
            for other in (text, turn["question"]):
                wrong += [other] if found(store, other, Path(f"/{name}/{1 - number % 2}"), floor=BEARS) else []
    # 4 of 54, and 6 of 108.
    assert len(missed) <= 0.1 * asked, missed
    assert len(wrong) <= 0.08 * 2 * asked, wrong


def test_nothing_of_another_repository_is_ever_found(store: SessionStore) -> None:
    say(store, OTHER, "talk", "how are retries counted?", "In `Retry.count`.")
    assert found(store, "how are retries counted?") == []
    say(store, ROOT, "talk", "what is a retry?", "A second try.")
    for query in ("how are retries counted?", "retry", "what was said today?"):
        assert [memory.question for memory in found(store, query, floor=0.0)] == ["what is a retry?"]


def test_words_for_times_narrow_what_is_found(store: SessionStore) -> None:
    text = "how are retries counted?"
    for days in (0, 1, 8, 40):
        say(store, ROOT, f"before-{days}", text, "In `Retry.count`.", NOW - days * DAY)

    def sessions(query: str, **more: Any) -> list[str]:
        return [memory.session for memory in found(store, query, **more)]

    # Of equals the latest comes first.
    assert sessions("retries") == ["before-0", "before-1", "before-8", "before-40"]
    assert sessions("what did we find out about the retries last week?") == ["before-8"]
    assert sessions("retries in October") == ["before-40"]
    assert sessions("retries", since=NOW - 2 * DAY, until=NOW - 1) == ["before-1"]
    # A time alone: what was said last.
    assert sessions("what did we talk about yesterday?") == ["before-1"]
    assert sessions("since last week", most=2) == ["before-0", "before-1"]
    assert sessions("what did we talk about?") == []


def test_forks_and_what_a_prompt_holds(store: SessionStore) -> None:
    say(store, ROOT, "talk", "how are retries counted?", "In `Retry.count`.")
    store.fork(ROOT, "talk", "fork")
    (memory,) = found(store, "retries counted")
    assert memory.session == "talk"
    assert found(store, "retries counted", without={(memory.asked_at, memory.question)}) == []
    store.delete(store.get(ROOT, "talk"))
    assert [memory.session for memory in found(store, "retries counted")] == ["fork"]


def test_another_embedder_makes_all_vectors_anew(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    say(store, ROOT, "talk", "how are retries counted?", "In `Retry.count`.")
    assert found(store, "retries counted")

    class Other:
        name, version, dimension = "other", 1, 2

        def embed_documents(self, texts: list[str]) -> Any:
            return self.embed_query("")[None].repeat(len(texts), 0)

        def embed_query(self, text: str) -> Any:
            import numpy as np

            return np.array([0.6, 0.8], np.float32)

    monkeypatch.setattr(memories, "default_embedder", Other)
    (memory,) = found(store, "xyzzy", floor=0.9)
    assert memory.score == pytest.approx(1.02, abs=0.02)


def test_deleted_words_leave_the_file(store: SessionStore) -> None:
    say(store, ROOT, "talk", "what of the quuxifier?", "It frobnicates unmistakably.")
    say(store, ROOT, "other", "what of retries?", "They are counted.")
    assert found(store, "quuxifier")

    def contents() -> bytes:
        return b"".join(file.read_bytes() for file in store.path.parent.iterdir()).lower()

    words = (b"quuxifi", b"frobnicat", b"unmistak")
    assert all(word in contents() for word in words)
    store.delete(store.get(ROOT, "talk"))
    assert not any(word in contents() for word in words)
    assert found(store, "quuxifier") == []
    assert found(store, "retries")


def test_answers_end_with_a_sentence() -> None:
    assert shortened("One. Two. Three.", 10) == "One. Two."
    assert shortened(" all of it ", 9) == "all of it"
    assert shortened("no sentence ends in here", 14) == "no sentence ..."
    assert shortened("x" * 20, 10) == "x" * 10 + " ..."


def test_code_stands_while_its_lines_do(repository: Path) -> None:
    def index() -> None:
        update_index(repository, Settings(), lambda progress: None, lambda: False)

    index()
    file = repository / "src" / "session.py"
    piece = ("src/session.py", file.read_text().strip())
    assert standing(repository, {piece}) == {piece}
    file.write_text(f"import os\n\n\n{file.read_text()}\n\ndef added():\n    return os.name\n")
    index()
    assert standing(repository, {piece, ("gone.py", piece[1])}) == {piece}
    file.write_text(file.read_text().replace("lifetime", "duration"))
    index()
    assert standing(repository, {piece}) == set()


SAID = "say Sessions expire in [1], after their lifetime: `Session`"


def test_a_new_session_recalls_what_another_has_said(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        first = await ask(service, repository, SAID, "login")
        assert first["memories"] == []
        again = await ask(service, repository, "history of sessions that expire after their lifetime", "other")
        (memory,) = again["memories"]
        assert (memory["session"], memory["turn"], memory["stale"], memory["cited"]) == ("login", 1, False, False)
        assert again["answer"] == f"0 before, {len(again['sources']) + 1} new, 0 present"
        assert all(source["end_line"] > 0 for source in again["sources"])
        # It is in the prompt already.
        third = await ask(service, repository, "history of sessions that expire after their lifetime", "other")
        assert third["answer"] == f"1 before, 0 new, {len(again['sources']) + 1} present"
        assert [memory["session"] for memory in third["memories"]] == ["login"]
        shown = await service.conversations.show(repository, "other")
        assert [source["path"] for source in shown["turns"][0]["sources"]] == [s["path"] for s in again["sources"]]

    run(body)


def test_a_recalled_turn_that_is_cited(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        await ask(service, repository, SAID, "login")
        # Behind the chunks of code.
        cited = "say Sessions expire after their lifetime, as in [{}]: `Session`"
        count = len((await ask(service, repository, cited.format(9), "other"))["sources"])
        for name in ("third", "third"):
            result = await ask(service, repository, cited.format(count + 1), name)
            assert [memory["cited"] for memory in result["memories"]] == [True, False]

    run(body)


def test_without_a_session_or_by_choice_nothing_is_recalled(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        await ask(service, repository, SAID, "login")
        alone = await service.ask(str(repository), question("sessions that expire after their lifetime"), values.append)
        assert alone["memories"] == []
        asked = Question("sessions that expire after their lifetime", time.monotonic(), session="other", memory=False)
        assert (await service.ask(str(repository), asked, values.append))["memories"] == []
        (repository / ".kvd.toml").write_text("memory = false\n")
        assert (await ask(service, repository, "sessions that expire after their lifetime", "third"))["memories"] == []

    run(body)


def test_what_was_said_of_changed_code_is_stale(repository: Path, fake_model: Path) -> None:
    async def search(service: Service) -> dict[str, Any]:
        nothing = lambda value: None  # noqa: E731
        found = await service.search_sessions(str(repository), "when do sessions expire?", 5, None, None, nothing)
        assert [result["turn"] for result in found["results"]] == [1]
        result: dict[str, Any] = found["results"][0]
        return result

    async def body(service: Service, values: Values) -> None:
        # The scripted engine puts the second best chunk first.
        await ask(service, repository, SAID.replace("[1]", "[2]"), "login")
        told = await search(service)
        assert (told["session"], told["question"], told["stale"]) == ("login", SAID.replace("[1]", "[2]"), False)
        assert told["answer"].startswith("Sessions expire in [2]")
        file = repository / "src" / "session.py"
        file.write_text(f"{file.read_text()}\n\nMORE = 1\n")
        assert not (await search(service))["stale"]
        file.write_text(file.read_text().replace("lifetime", "duration"))
        assert (await search(service))["stale"]
        (memory,) = (await ask(service, repository, "sessions that expire after their lifetime", "other"))["memories"]
        assert memory["stale"]
        store = SessionStore(paths.sessions_file())
        origins = [chunk.path for chunk in store.chunks(store.get(repository, "other")) if not chunk.end_line]
        assert origins[0].startswith("earlier conversation login, turn 1, 20")
        assert origins[0].endswith(" (the code has changed since)")

    run(body)


def test_deleting_takes_it_out_of_other_conversations(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        await ask(service, repository, "say Sessions expire unmistakably, in [2]: `Session`", "login")
        other = await ask(service, repository, "history of sessions that expire unmistakably", "other")
        assert len(other["memories"]) == 1
        store = SessionStore(paths.sessions_file())
        session = store.get(repository, "other")
        (said,) = (chunk for chunk in store.chunks(session) if not chunk.end_line)
        # How the scripted engine calls its block.
        block = sha256(said.text.encode()).hexdigest()
        assert await written(service) == {key_of(1), block}
        await service.conversations.delete(repository, "login")
        # The block of the other's turn depends on what it had recalled.
        assert await written(service) == set()
        assert (store.state(session), store.quotes(session)) == ("", {})
        assert all(chunk.end_line for chunk in store.chunks(session))
        contents = b"".join(file.read_bytes() for file in paths.sessions_file().parent.glob("sessions.db*"))
        assert b"Sessions expire unmistakably" not in contents
        again = await ask(service, repository, "history of sessions", "other")
        assert again["answer"].startswith("1 before")
        assert await written(service) == {key_of(1)}

    run(body)


def test_what_a_failed_question_has_recalled_can_be_deleted_too(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        await ask(service, repository, "say Sessions expire unmistakably, in [2]: `Session`", "login")
        with pytest.raises(KvdError, match="no room"):
            await ask(service, repository, "fail at sessions that expire unmistakably", "failed")
        assert len(await written(service)) == 2
        await service.conversations.delete(repository, "login")
        assert await written(service) == set()

    run(body)
