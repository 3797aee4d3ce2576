"""Conversations on disk: names, turns, forks, deletion for good."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import apsw
import pytest

from kvd.errors import StoreError, UsageError
from kvd.sessions import database
from kvd.sessions.memory_index import MemoryIndex, Wanted
from kvd.sessions.records import SaidChunk, Session, Turn
from kvd.sessions.store import SessionStore

ROOT, OTHER = Path("/repo"), Path("/other")
MODEL = ("small", "ab" * 32)


class Clock:
    def __init__(self) -> None:
        self.now = 1_764_547_200.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path / "sessions.db", Clock())


def a_chunk(label: int, turn: int, text: str) -> SaidChunk:
    return SaidChunk(label, turn, "src/a.py", 1, 3, "A.b", "python", text)


def say(store: SessionStore, session: Session, number: int, question: str, text: str = "code") -> None:
    turn = Turn(number, question, f"answer {number}", "stop", 5.0, "c0ffee", [{"path": "src/a.py"}], {"fresh": 3})
    store.add_turn(session, turn, [a_chunk(number, number, text)], f"state {number}", MODEL)


def contents(store: SessionStore) -> bytes:
    return b"".join(file.read_bytes() for file in store.path.parent.iterdir())


def test_what_was_said_comes_back(store: SessionStore) -> None:
    session = store.create(ROOT, "login")
    say(store, session, 1, "who?")
    say(store, session, 2, "why?")
    found = store.get(ROOT, "login")
    assert (found.turns, found.model, found.model_sha256, found.parent) == (2, *MODEL, "")
    assert found.used_at > found.created_at == session.created_at
    first, second = store.turns(found)
    assert (first.question, second.answer, second.commit) == ("who?", "answer 2", "c0ffee")
    assert (first.sources, first.tokens) == ([{"path": "src/a.py"}], {"fresh": 3})
    assert store.chunks(found) == [a_chunk(1, 1, "code"), a_chunk(2, 2, "code")]
    assert store.state(found) == "state 2"
    assert stat.S_IMODE(os.stat(store.path).st_mode) == 0o600


def test_a_name_is_one_session_of_one_repository(store: SessionStore) -> None:
    mine = store.create(ROOT, "login")
    with pytest.raises(UsageError, match="already"):
        store.create(ROOT, "login")
    theirs = store.create(OTHER, "login")
    say(store, theirs, 1, "secret")
    assert store.turns(store.get(ROOT, "login")) == []
    assert [session.id for session in store.all_of(ROOT)] == [mine.id]
    assert store.get_or_create(ROOT, "login").id == mine.id
    with pytest.raises(UsageError, match="no session"):
        store.get(ROOT, "logout")


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "a/b", "a\nb", "x" * 65, "a\0"])
def test_what_can_not_be_a_name(store: SessionStore, name: str) -> None:
    with pytest.raises(UsageError, match="can't be called"):
        store.create(ROOT, name)


def test_sessions_without_a_name_are_named_after_the_day(store: SessionStore) -> None:
    names = [store.create(ROOT).name for _ in range(3)]
    assert names == [names[0], f"{names[0]}-2", f"{names[0]}-3"]
    assert [session.name for session in store.all_of(ROOT)] == names[::-1]


def test_a_turn_that_another_has_overtaken_is_refused_whole(store: SessionStore) -> None:
    session = store.create(ROOT, "login")
    say(store, session, 1, "who?")
    with pytest.raises(UsageError, match="went on"):
        say(store, session, 1, "again", "other code")
    store.delete(session)
    with pytest.raises(UsageError, match="went on"):
        say(store, session, 1, "into nothing")
    assert b"other code" not in contents(store)


def test_forks_go_their_own_ways(store: SessionStore) -> None:
    session = store.create(ROOT, "login")
    say(store, session, 1, "who?")
    fork = store.fork(ROOT, "login", "fork")
    assert (fork.parent, fork.family, fork.turns) == ("login", session.family, 1)
    say(store, fork, 2, "why?")
    assert [len(store.turns(each)) for each in (session, fork)] == [1, 2]
    assert [store.state(each) for each in (session, fork)] == ["state 1", "state 2"]
    deleted = store.delete(session)
    assert (deleted.last, deleted.state, deleted.kept) == (False, "state 1", ("state 2",))
    left = store.get(ROOT, "fork")
    assert (left.parent, len(store.chunks(left))) == ("", 2)
    assert store.delete(left).last


def test_deleted_for_good(store: SessionStore) -> None:
    session, other = store.create(ROOT, "login"), store.create(ROOT, "other")
    say(store, session, 1, "a question nobody else asks", "code nobody else has")
    say(store, session, 2, "and another", "shared code")
    say(store, other, 1, "something else", "shared code")
    assert b"nobody else asks" in contents(store)
    store.delete(session)
    for gone in (b"nobody else asks", b"code nobody else has", b"and another", b"answer 2"):
        assert gone not in contents(store)
    assert [chunk.text for chunk in store.chunks(other)] == ["shared code"]


def test_closing_lasts_until_the_next_turn(store: SessionStore) -> None:
    session = store.create(ROOT, "login")
    assert store.close(ROOT, "login").closed
    say(store, session, 1, "who?")
    assert not store.get(ROOT, "login").closed


def test_unused_sessions_are_found_in_all_repositories(store: SessionStore) -> None:
    old, older, new = store.create(ROOT, "old"), store.create(OTHER, "older"), store.create(ROOT, "new")
    moment = new.used_at
    say(store, new, 1, "still in use")
    assert [session.id for session in store.unused_since(moment)] == [old.id, older.id]


def test_a_damaged_or_newer_file_is_left_alone(store: SessionStore) -> None:
    store.create(ROOT, "login")
    db = apsw.Connection(str(store.path))
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="newer kvd"):
        store.all_of(ROOT)
    store.path.write_bytes(b"no database at all, but long enough to be taken for one" * 100)
    before = store.path.read_bytes()
    with pytest.raises(StoreError, match="can't be read"):
        store.all_of(ROOT)
    assert store.path.read_bytes() == before


def test_notes_are_of_one_repository_and_deleted_for_good(store: SessionStore) -> None:
    first, second = store.add_note(ROOT, "sessions last an hour"), store.add_note(ROOT, "use tabs")
    theirs = store.add_note(OTHER, "use blanks")
    assert store.notes(ROOT) == [first, second]
    assert (store.notes(OTHER), theirs.number) == ([theirs], 1)
    store.delete_note(ROOT, 1)
    assert store.notes(ROOT) == [second]
    assert b"last an hour" not in contents(store)
    with pytest.raises(UsageError, match="no note 1"):
        store.delete_note(ROOT, 1)
    assert store.add_note(ROOT, "third").number == 3


def test_an_older_file_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    db = apsw.Connection(str(path))
    db.execute(database._MIGRATIONS[0])
    db.execute("PRAGMA user_version = 1")
    source = {"path": "src/a.py", "start_line": 1, "end_line": 3}
    sources = [{**source, "cited": True}, {**source, "path": "src/b.py", "cited": False}]
    db.execute("INSERT INTO sessions (root, name, family, created_at, used_at) VALUES (x'2f72', 'login', x'00', 1, 2)")
    turn = ("who?", "A user.", "stop", 5.0, "c0ffee", json.dumps(sources), "{}", "{}")
    db.execute("INSERT INTO turns VALUES (1, 1, ?, ?, ?, ?, ?, ?, ?, ?)", turn)
    db.execute("INSERT INTO texts VALUES (x'01', 'code')")
    for label, name in ((1, "src/a.py"), (2, "src/b.py")):
        db.execute("INSERT INTO chunks VALUES (1, ?, 1, ?, 1, 3, 'A.b', 'python', x'01')", (label, name))
    db.close()
    store, root = SessionStore(path, Clock()), Path("/r")
    assert store.notes(root) == []
    assert [turn.question for turn in store.turns(store.get(root, "login"))] == ["who?"]
    assert store.add_note(root, "new").number == 1
    # It can be found, with what it cites.
    index = MemoryIndex(path)
    (waiting,) = index.waiting("maker", 5)
    index.put("maker", [(waiting, "who a user", b"\x7f\0")])
    (memory,) = index.find(root, Wanted(["user"], b"\x7f\0", None, 6.0), 5, 1.0)
    assert (memory.question, memory.asked_at, memory.cited) == ("who?", 5.0, (("src/a.py", "code"),))


def test_paths_that_are_not_utf8(store: SessionStore) -> None:
    root = Path(os.fsdecode(b"/r\xff"))
    assert store.create(root, "login").root == root
