"""Sessions and their turns, in one file for a user. Each belongs to one repository and is found by its name there."""

from __future__ import annotations

import datetime
import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw

from kvd.errors import UsageError
from kvd.sessions.database import opened, overwrite_log
from kvd.sessions.quotes import add_blocks, add_quotes, delete_quotes, read_quotes
from kvd.sessions.records import Deleted, Note, Quote, SaidChunk, Session, Turn, check_name
from kvd.sqlite import transaction

FAMILY_BYTES = 32

_SESSION = """
SELECT s.id, s.name, s.root, s.family, coalesce(p.name, ''), s.model, s.model_sha256, s.created_at, s.used_at, s.closed,
    (SELECT count(*) FROM turns WHERE session_id = s.id)
FROM sessions AS s LEFT JOIN sessions AS p ON p.id = s.parent
"""


class SessionStore:
    """Opens the file at `path` for each call, from any thread. Every method raises what `database.opened` raises.

    `clock` gives the time of creation and use.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock

    def create(self, root: Path, name: str | None = None) -> Session:
        """A new session, named after the day where no name is given. Raises `UsageError` for a name that is taken or
        can't be one."""
        with opened(self.path) as db:
            with transaction(db):
                name = check_name(_day_name(db, root, self._clock()) if name is None else name)
                _check_free(db, root, name)
                _insert(db, root, name, self._clock())
            return _find(db, root, name)

    def get(self, root: Path, name: str) -> Session:
        """Raises `UsageError` where the repository has no such session."""
        with opened(self.path) as db:
            return _find(db, root, name)

    def get_or_create(self, root: Path, name: str) -> Session:
        """The session of that name; `UsageError` for what can't be one."""
        with opened(self.path) as db, transaction(db):
            _insert(db, root, check_name(name), self._clock())
            return _find(db, root, name)

    def all_of(self, root: Path) -> list[Session]:
        """Those of a repository, the last used first."""
        with opened(self.path) as db:
            return _sessions(db, "WHERE s.root = ? ORDER BY s.used_at DESC, s.id DESC", (os.fsencode(root),))

    def turns(self, session: Session, first: int = 1) -> list[Turn]:
        """From number `first` to the last."""
        with opened(self.path) as db:
            rows = db.execute(
                "SELECT number, question, answer, finish, asked_at, commit_id, sources, tokens, timings_ms FROM turns"
                " WHERE session_id = ? AND number >= ? ORDER BY number",
                (session.id, first),
            ).fetchall()
        return [Turn(*_plain(row[:6]), *(json.loads(str(text)) for text in row[6:])) for row in rows]

    def chunks(self, session: Session, first: int = 1) -> list[SaidChunk]:
        """The code that the turns from number `first` on brought in, by label."""
        with opened(self.path) as db:
            rows = db.execute(
                "SELECT label, turn, path, start_line, end_line, scope, language, text FROM chunks"
                " JOIN texts USING (hash) WHERE session_id = ? AND turn >= ? ORDER BY label",
                (session.id, first),
            ).fetchall()
        return [SaidChunk(*_plain(row)) for row in rows]

    def quotes(self, session: Session) -> dict[int, Quote]:
        """Which of the chunks are turns, by label."""
        with opened(self.path) as db:
            return read_quotes(db, session.id)

    def state(self, session: Session) -> str:
        """What the engine needs to go on, in its own words; "" for nothing."""
        with opened(self.path) as db:
            return _state(db, session)

    def other_states(self, session: Session) -> list[str]:
        """What the engine needs for the others of its family."""
        with opened(self.path) as db:
            rows = db.execute(
                "SELECT state FROM sessions WHERE family = ? AND id != ?", (session.family, session.id)
            ).fetchall()
        return [str(row[0]) for row in rows]

    def add_turn(
        self,
        session: Session,
        turn: Turn,
        chunks: Sequence[SaidChunk],
        state: str,
        model: tuple[str, str],
        cited: Collection[int] = (),
        quotes: Mapping[int, Quote] | None = None,
    ) -> None:
        """Write a turn with the chunks that it brought in, all or nothing. `model`: name and sha256 of its file;
        `cited`: labels of the chunks that the answer cites; `quotes`: those of the chunks that are turns, by label.

        Raises `UsageError` where the session, or one that is quoted, has been deleted, or another turn came first.
        """
        with opened(self.path) as db, transaction(db):
            if _last_number(db, session) != turn.number - 1:
                raise UsageError(f"the session {session.name} went on without this answer", hint="ask again")
            _add_turn(db, session.id, turn)
            _add_chunks(db, session.id, chunks)
            db.executemany("INSERT INTO cited VALUES (?, ?, ?)", [(session.id, turn.number, label) for label in cited])
            add_quotes(db, session.id, quotes or {})
            db.execute(
                "UPDATE sessions SET used_at = ?, state = ?, model = ?, model_sha256 = ?, closed = 0 WHERE id = ?",
                (self._clock(), state, *model, session.id),
            )

    def fork(self, root: Path, name: str, new_name: str | None) -> Session:
        """A session that has said the same so far. Raises `UsageError` as `get` and `create` do."""
        with opened(self.path) as db:
            with transaction(db):
                source = _find(db, root, name)
                new_name = check_name(_day_name(db, root, self._clock()) if new_name is None else new_name)
                _check_free(db, root, new_name)
                now = self._clock()
                db.execute(
                    "INSERT INTO sessions (root, name, parent, family, model, model_sha256, created_at, used_at, state)"
                    " SELECT root, ?, id, family, model, model_sha256, ?, ?, state FROM sessions WHERE id = ?",
                    (new_name, now, now, source.id),
                )
                fork = _find(db, root, new_name)
                for table in ("turns", "chunks", "cited", "quoted"):
                    columns = ", ".join(_columns(db, table)[1:])
                    db.execute(
                        f"INSERT INTO {table} SELECT ?, {columns} FROM {table} WHERE session_id = ?",
                        (fork.id, source.id),
                    )
            return _find(db, root, new_name)

    def close(self, root: Path, name: str) -> Session:
        """Mark as closed, until it is asked again."""
        with opened(self.path) as db:
            session = _find(db, root, name)
            with transaction(db):
                db.execute("UPDATE sessions SET closed = 1 WHERE id = ?", (session.id,))
            return _find(db, root, name)

    def delete(self, session: Session) -> Deleted:
        """Delete for good: what is deleted is overwritten on disk."""
        with opened(self.path) as db:
            with transaction(db):
                state = _state(db, session)
                blocks = db.execute("SELECT key FROM quoted_blocks WHERE source_id = ?", (session.id,)).fetchall()
                texts = db.execute("SELECT DISTINCT hash FROM chunks WHERE session_id = ?", (session.id,)).fetchall()
                db.execute("DELETE FROM sessions WHERE id = ?", (session.id,))
                unused = "hash = ? AND NOT EXISTS (SELECT 1 FROM chunks WHERE chunks.hash = texts.hash)"
                db.executemany(f"DELETE FROM texts WHERE {unused}", texts)
                kept = db.execute("SELECT state FROM sessions WHERE family = ?", (session.family,)).fetchall()
            overwrite_log(db)
        quoted = tuple(_plain(row)[0] for row in blocks)
        return Deleted(session.family, state, not kept, tuple(str(row[0]) for row in kept), quoted)

    def add_quoted_blocks(self, source_id: int, keys: Sequence[bytes]) -> bool:
        """Note keys of what is stored of a session's turns as parts of other prompts; False where it is gone."""
        with opened(self.path) as db, transaction(db):
            return add_blocks(db, source_id, keys)

    def quoting_deleted(self) -> list[Session]:
        """Sessions of all repositories whose prompts hold turns of sessions that are gone."""
        with opened(self.path) as db:
            where = "SELECT session_id FROM quoted WHERE source_id NOT IN (SELECT id FROM sessions)"
            return _sessions(db, f"WHERE s.id IN ({where})", ())

    def unquote_deleted(self, session: Session) -> str:
        """Take the turns of sessions that are gone out of a session, for good; its engine state, which held them too
        and is none from now on."""
        with opened(self.path) as db:
            with transaction(db):
                state = _state(db, session)
                delete_quotes(db, session.id)
                db.execute("UPDATE sessions SET state = '' WHERE id = ?", (session.id,))
            overwrite_log(db)
        return state

    def unused_since(self, moment: float) -> list[Session]:
        """Sessions of all repositories that were last used before then."""
        with opened(self.path) as db:
            return _sessions(db, "WHERE s.used_at < ? ORDER BY s.used_at", (moment,))

    def add_note(self, root: Path, text: str) -> Note:
        place = os.fsencode(root)
        with opened(self.path) as db, transaction(db):
            rows = db.execute("SELECT coalesce(max(number), 0) + 1 FROM notes WHERE root = ?", (place,)).fetchall()
            note = Note(int(_plain(rows[0])[0]), text, self._clock())
            db.execute("INSERT INTO notes VALUES (?, ?, ?, ?)", (place, note.number, note.text, note.created_at))
        return note

    def notes(self, root: Path) -> list[Note]:
        """Those of a repository, by number."""
        with opened(self.path) as db:
            rows = db.execute(
                "SELECT number, text, created_at FROM notes WHERE root = ? ORDER BY number", (os.fsencode(root),)
            ).fetchall()
        return [Note(*_plain(row)) for row in rows]

    def delete_note(self, root: Path, number: int) -> None:
        """Delete for good. Raises `UsageError` where the repository has no such note."""
        with opened(self.path) as db:
            with transaction(db):
                db.execute("DELETE FROM notes WHERE root = ? AND number = ?", (os.fsencode(root), number))
                if not db.changes():
                    raise UsageError(f"{root} has no note {number}", hint="kvd notes list")
            overwrite_log(db)


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of a row; which types they have the schema says."""
    return row


def _state(db: apsw.Connection, session: Session) -> str:
    rows = db.execute("SELECT state FROM sessions WHERE id = ?", (session.id,)).fetchall()
    return str(rows[0][0]) if rows else ""


def _sessions(db: apsw.Connection, where: str, bindings: tuple[Any, ...]) -> list[Session]:
    found = []
    for row in db.execute(_SESSION + where, bindings):
        number, name, root, family, parent, model, sha256, created, used, closed, turns = _plain(row)
        place = Path(os.fsdecode(root))
        found.append(Session(number, name, place, family, parent, model, sha256, created, used, bool(closed), turns))
    return found


def _find(db: apsw.Connection, root: Path, name: str) -> Session:
    rows = _sessions(db, "WHERE s.root = ? AND s.name = ?", (os.fsencode(root), name))
    if not rows:
        raise UsageError(f"{root} has no session {name[:80]!r}", hint="kvd sessions list")
    return rows[0]


def _insert(db: apsw.Connection, root: Path, name: str, now: float) -> None:
    """Make a session, unless there is one of that name."""
    db.execute(
        "INSERT OR IGNORE INTO sessions (root, name, family, created_at, used_at) VALUES (?, ?, ?, ?, ?)",
        (os.fsencode(root), name, secrets.token_bytes(FAMILY_BYTES), now, now),
    )


def _check_free(db: apsw.Connection, root: Path, name: str) -> None:
    if _sessions(db, "WHERE s.root = ? AND s.name = ?", (os.fsencode(root), name)):
        raise UsageError(f"there is a session {name} already", hint="choose another name")


def _day_name(db: apsw.Connection, root: Path, now: float) -> str:
    """`2026-12-01`, then `2026-12-01-2` and so on."""
    day = datetime.datetime.fromtimestamp(now).date().isoformat()
    taken = {str(name) for (name,) in db.execute("SELECT name FROM sessions WHERE root = ?", (os.fsencode(root),))}
    names = [day, *(f"{day}-{number}" for number in range(2, len(taken) + 2))]
    return next(name for name in names if name not in taken)


def _last_number(db: apsw.Connection, session: Session) -> int:
    """-1 where the session is gone."""
    rows = db.execute(
        "SELECT (SELECT coalesce(max(number), 0) FROM turns WHERE session_id = sessions.id) FROM sessions WHERE id = ?",
        (session.id,),
    ).fetchall()
    return int(_plain(rows[0])[0]) if rows else -1


def _add_turn(db: apsw.Connection, session: int, turn: Turn) -> None:
    texts = [json.dumps(value) for value in (turn.sources, turn.tokens, turn.timings_ms)]
    values = (turn.number, turn.question, turn.answer, turn.finish, turn.asked_at, turn.commit)
    db.execute("INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (session, *values, *texts))


def _add_chunks(db: apsw.Connection, session: int, chunks: Sequence[SaidChunk]) -> None:
    db.executemany("INSERT OR IGNORE INTO texts VALUES (?, ?)", [(chunk.hash, chunk.text) for chunk in chunks])
    db.executemany(
        "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(session, c.label, c.turn, c.path, c.start_line, c.end_line, c.scope, c.language, c.hash) for c in chunks],
    )


def _columns(db: apsw.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")]
