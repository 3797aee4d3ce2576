"""Turns of other sessions in a session's prompt: they stay there until they are deleted where they are from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from kvd.errors import UsageError
from kvd.sessions.records import Quote


def read_quotes(db: apsw.Connection, session: int) -> dict[int, Quote]:
    """Those of a session, by label."""
    sql = "SELECT label, source_id, session, turn, asked_at, commit_id, stale FROM quoted WHERE session_id = ?"
    rows: list[tuple[Any, ...]] = list(db.execute(sql, (session,)))
    return {
        label: Quote(source, name, turn, asked_at, commit, bool(stale))
        for label, source, name, turn, asked_at, commit, stale in rows
    }


def add_quotes(db: apsw.Connection, session: int, quotes: Mapping[int, Quote]) -> None:
    """Note which of a session's chunks are turns. Raises `UsageError` where one has been deleted meanwhile."""
    for label, quote in quotes.items():
        if not db.execute("SELECT 1 FROM sessions WHERE id = ?", (quote.source_id,)).fetchall():
            raise UsageError(f"the session {quote.session}, which was recalled, has been deleted", hint="ask again")
        values = (quote.source_id, quote.session, quote.turn, quote.asked_at, quote.commit, int(quote.stale))
        db.execute("INSERT INTO quoted VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (session, label, *values))


def delete_quotes(db: apsw.Connection, session: int) -> None:
    """Delete the chunks of a session that are turns of sessions which are gone."""
    gone = "SELECT label FROM quoted WHERE session_id = ?1 AND source_id NOT IN (SELECT id FROM sessions)"
    db.execute(f"DELETE FROM chunks WHERE session_id = ?1 AND label IN ({gone})", (session,))
    db.execute("DELETE FROM texts WHERE hash NOT IN (SELECT hash FROM chunks)")


def add_blocks(db: apsw.Connection, source_id: int, keys: Sequence[bytes]) -> bool:
    """Note keys of what is stored of a session's turns as parts of prompts; whether the session is still there."""
    sql = "INSERT OR IGNORE INTO quoted_blocks SELECT id, ? FROM sessions WHERE id = ?"
    db.executemany(sql, [(key, source_id) for key in keys])
    return bool(db.execute("SELECT 1 FROM sessions WHERE id = ?", (source_id,)).fetchall())
