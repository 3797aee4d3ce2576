"""Which blocks leave a full cold store.

A block is worth `uses x tokens / bytes`: what it saves, by the room it takes. Uses count half after each
`HALF_LIFE` without one, so that what was once popular leaves in the end (LRFU: Lee et al., IEEE Transactions on
Computers 50(12), 2001; cost by size: Cao and Irani, GreedyDual-Size, USITS 1997). All values halve alike, so their
order changes only with use: what is stored is log2 of the value plus the time of the last use in half-lives, and an
index on that has the victims in order.

Models that are not in use give up everything before those in use lose anything. A block leaves before the one that
it continues, never after: a chain is read from its start.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import apsw

HALF_LIFE = 7 * 86_400.0
"""Seconds after which a use counts half. Stored values are in this unit: another one needs a migration."""

IN_USE = "(used_at >= ? OR used_at = (SELECT max(used_at) FROM models))"
"""Of a row of `models`: used since a given time, or last of all."""

_FORGET = 0.95
"""What earlier timings of prefill weigh when another is made, as in `kvd.kv.costs`."""

_USE = f"""
UPDATE usage SET
    uses = 1 + uses * pow(0.5, max(0, :now - used_at) / {HALF_LIFE}),
    used_at = max(used_at, :now),
    value = weight + log2(1 + uses * pow(0.5, max(0, :now - used_at) / {HALF_LIFE})) + max(used_at, :now) / {HALF_LIFE}
WHERE key = :key RETURNING model
"""
_MARK_MODEL = """
INSERT INTO models (fingerprint, used_at) VALUES (?, ?)
ON CONFLICT (fingerprint) DO UPDATE SET used_at = excluded.used_at WHERE used_at < ?
"""
_MODELS = f"SELECT id, {IN_USE}, timed_tokens, seconds FROM models ORDER BY used_at"
_ROW = "usage.key, blocks.parent, blocks.size, usage.used_at, usage.value"
_NO_CHILD = "NOT EXISTS (SELECT 1 FROM blocks AS child WHERE child.parent = usage.key)"
# CROSS JOIN: in the order of the index on values, whatever the planner thinks of it.
_LAST_BLOCKS = f"""
SELECT {_ROW} FROM usage CROSS JOIN blocks USING (key) WHERE usage.model = ? AND {_NO_CHILD}
ORDER BY usage.value LIMIT ?
"""
_BEFORE = f"""
SELECT {_ROW} FROM usage CROSS JOIN blocks USING (key)
WHERE usage.key = ? AND usage.used_at <= ? AND {_NO_CHILD}
"""


@dataclass(slots=True)
class Evicted:
    """Blocks that had to leave: of models in use ("cap"), and of others ("foreign")."""

    cap: int = 0
    foreign: int = 0


@dataclass(frozen=True, slots=True)
class _Victim:
    key: bytes
    parent: bytes
    size: int
    used_at: float
    value: float


@dataclass(frozen=True, slots=True)
class _Model:
    id: int
    current: bool
    seconds_per_token: float
    """Of prefill; 0.0: never timed."""


def use(db: apsw.Connection, keys: Iterable[bytes], now: float) -> None:
    """Count a use of the blocks at `keys` and of their models; keys that are not stored are ignored."""
    models = {row[0] for row in db.executemany(_USE, [{"now": now, "key": key} for key in keys])}
    db.executemany("UPDATE models SET used_at = max(used_at, ?) WHERE id = ?", [(now, model) for model in models])


def mark_models(db: apsw.Connection, fingerprints: Collection[bytes], now: float, since: float) -> None:
    """Say that models are in use, known ones or new; writes nothing for those used at `since` or later."""
    db.executemany(_MARK_MODEL, [(fingerprint, now, since) for fingerprint in fingerprints])


def add_timing(db: apsw.Connection, fingerprint: bytes, tokens: int, seconds: float) -> None:
    """Learn what prefill costs with a model on this machine."""
    db.execute(
        f"UPDATE models SET timed_tokens = timed_tokens * {_FORGET} + ?, seconds = seconds * {_FORGET} + ?"
        " WHERE fingerprint = ?",
        (tokens, seconds, fingerprint),
    )


def evict(db: apsw.Connection, since: float, wanted: int, most: int, spare: Collection[bytes] = ()) -> Evicted:
    """Delete blocks until their frames have `wanted` bytes or `most` blocks are gone.

    Models used at `since` or later are in use, and so is the one that was used last. Blocks in `spare` stay. May be
    a chain's length more than asked for: of a body, which is read whole or not at all, nothing is left behind.
    """
    foreign, victims = _victims(db, since, most + len(spare))
    count = size = 0
    for victim in victims:
        if size >= wanted or count >= most:
            break
        if victim.key in spare:
            continue
        removed = _remove_chain(db, victim, spare)
        count, size = count + len(removed), size + sum(block.size for block in removed)
    return Evicted(foreign=count) if foreign else Evicted(cap=count)


def _victims(db: apsw.Connection, since: float, limit: int) -> tuple[bool, list[_Victim]]:
    """The last blocks of chains, least worth first: of the model that is out of use longest, else of those in use."""
    models = [
        _Model(int(row[0]), bool(row[1]), row[3] / row[2] if row[2] else 0.0)
        for row in _rows(db.execute(_MODELS, (since,)))
    ]
    for model in models:
        if not model.current and (victims := _last_blocks(db, model, limit)):
            return True, victims
    current = [model for model in models if model.current]
    costs = [model.seconds_per_token for model in current]
    # Tokens of different models are worth what computing them takes; where that is not known of all, the same.
    shifts = [math.log2(cost) for cost in costs] if all(costs) else [0.0] * len(costs)
    lists = [
        [(victim.value + shift, index, victim) for index, victim in enumerate(_last_blocks(db, model, limit))]
        for model, shift in zip(current, shifts, strict=True)
    ]
    return False, [victim for _, _, victim in heapq.merge(*lists, key=lambda item: item[0])]


def _last_blocks(db: apsw.Connection, model: _Model, limit: int) -> list[_Victim]:
    return [_Victim(*row) for row in _rows(db.execute(_LAST_BLOCKS, (model.id, limit)))]


def _remove_chain(db: apsw.Connection, victim: _Victim, spare: Collection[bytes]) -> list[_Victim]:
    """Delete a block, and those before it that nothing else continues and that were not used without it since."""
    removed = []
    following: _Victim | None = victim
    while following is not None:
        db.execute("DELETE FROM blocks WHERE key = ?", (following.key,))
        removed.append(following)
        before = _rows(db.execute(_BEFORE, (following.parent, following.used_at)))
        following = _Victim(*before[0]) if before and before[0][0] not in spare else None
    return removed


def _rows(cursor: apsw.Cursor) -> Sequence[tuple[Any, ...]]:
    return cursor.fetchall()


def drop_with_rest(db: apsw.Connection, keys: Sequence[bytes]) -> None:
    """Delete the blocks at `keys`, and what continues them: it can't be read without them."""
    db.executemany(
        """
        DELETE FROM blocks WHERE key IN (
            WITH RECURSIVE rest (key) AS (
                SELECT ? UNION SELECT blocks.key FROM blocks JOIN rest ON blocks.parent = rest.key
            ) SELECT key FROM rest
        )
        """,
        [(key,) for key in keys],
    )
