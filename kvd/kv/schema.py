"""The cold store's tables, and how older files become newer ones.

`blocks` has what is stored and never changes but by being written anew; its rows are long. What changes at every use
is in `usage`, whose rows are short, and `models` sums up each fingerprint, so that neither a use nor a status reads
the long rows. Triggers keep the three in step, whoever writes.
"""

from __future__ import annotations

import apsw

from kvd.sqlite import transaction

MIGRATIONS = (
    """
    CREATE TABLE blocks (
        key         BLOB PRIMARY KEY,
        parent      BLOB NOT NULL,
        fingerprint BLOB NOT NULL,
        tokens      INTEGER NOT NULL,
        size        INTEGER NOT NULL,
        used_at     REAL NOT NULL,
        data        BLOB NOT NULL
    ) STRICT;
    CREATE INDEX blocks_by_use ON blocks (used_at);
    """,
    """
    DROP INDEX blocks_by_use;
    ALTER TABLE blocks RENAME COLUMN used_at TO written_at;
    CREATE INDEX blocks_by_parent ON blocks (parent);
    CREATE TABLE models (
        id           INTEGER PRIMARY KEY,
        fingerprint  BLOB NOT NULL UNIQUE,
        used_at      REAL NOT NULL,
        blocks       INTEGER NOT NULL DEFAULT 0,
        tokens       INTEGER NOT NULL DEFAULT 0,
        size         INTEGER NOT NULL DEFAULT 0,
        timed_tokens REAL NOT NULL DEFAULT 0,
        seconds      REAL NOT NULL DEFAULT 0
    ) STRICT;
    CREATE TABLE usage (
        key     BLOB PRIMARY KEY,
        model   INTEGER NOT NULL,
        weight  REAL NOT NULL,
        uses    REAL NOT NULL,
        used_at REAL NOT NULL,
        value   REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
    INSERT INTO models (fingerprint, used_at, blocks, tokens, size)
        SELECT fingerprint, max(written_at), count(*), sum(tokens), sum(size) FROM blocks GROUP BY fingerprint;
    INSERT INTO usage
        SELECT key, models.id, weight, 1, written_at, weight + written_at / 604800 FROM (
            SELECT key, fingerprint, written_at, log2(max(blocks.tokens, 1) * 1.0 / max(blocks.size, 1)) AS weight
            FROM blocks
        ) JOIN models USING (fingerprint) ORDER BY key;
    CREATE INDEX usage_by_value ON usage (model, value);
    CREATE TRIGGER block_added AFTER INSERT ON blocks BEGIN
        INSERT INTO models (fingerprint, used_at) SELECT NEW.fingerprint, 0
            WHERE NOT EXISTS (SELECT 1 FROM models WHERE fingerprint = NEW.fingerprint);
        UPDATE models SET blocks = blocks + 1, tokens = tokens + NEW.tokens, size = size + NEW.size
            WHERE fingerprint = NEW.fingerprint;
        INSERT INTO usage SELECT NEW.key, id, log2(max(NEW.tokens, 1) * 1.0 / max(NEW.size, 1)), 0, 0, 0
            FROM models WHERE fingerprint = NEW.fingerprint;
    END;
    CREATE TRIGGER block_replaced AFTER UPDATE OF size ON blocks BEGIN
        UPDATE models SET size = size + NEW.size - OLD.size WHERE fingerprint = NEW.fingerprint;
        UPDATE usage SET weight = log2(max(NEW.tokens, 1) * 1.0 / max(NEW.size, 1)) WHERE key = NEW.key;
    END;
    CREATE TRIGGER block_removed AFTER DELETE ON blocks BEGIN
        DELETE FROM usage WHERE key = OLD.key;
        UPDATE models SET blocks = blocks - 1, tokens = tokens - OLD.tokens, size = size - OLD.size
            WHERE fingerprint = OLD.fingerprint;
    END;
    """,
)
"""Each makes the next version of a file, in one transaction with its number. Append only: files of every version exist.

`usage.weight` is log2 of a block's tokens by byte; 604800 is `kvd.kv.eviction.HALF_LIFE`.
"""

SCHEMA_VERSION = len(MIGRATIONS)

_NAMES = {
    *("blocks", "blocks_by_parent", "block_added", "block_replaced", "block_removed"),
    *("models", "usage", "usage_by_value"),
}
_COLUMNS = {
    "blocks": "key parent fingerprint tokens size written_at data",
    "models": "id fingerprint used_at blocks tokens size timed_tokens seconds",
    "usage": "key model weight uses used_at value",
}
_INCREMENTAL = 2
"""`PRAGMA auto_vacuum` of a file that can give back its free pages."""


def prepare(db: apsw.Connection) -> None:
    """Make or migrate the tables. Raises `apsw.CorruptError` for a file that can't be used as it is.

    A file that can't give back its space counts as such: `VACUUM`, which would cure it, needs room for all of it
    again, twice. kvd never makes one.
    """
    if db.pragma("user_version") == 0:
        for table in _COLUMNS:
            db.execute(f"DROP TABLE IF EXISTS {table}")
    if db.pragma("auto_vacuum") != _INCREMENTAL:
        raise apsw.CorruptError("it can't give back its free pages")
    for version in range(db.pragma("user_version"), SCHEMA_VERSION):
        with transaction(db):
            db.execute(MIGRATIONS[version])
            db.pragma("user_version", version + 1)
    _check(db)


def _check(db: apsw.Connection) -> None:
    """Compare names, and read a little through every table and index."""
    missing = _NAMES - {str(row[0]) for row in db.execute("SELECT name FROM sqlite_schema")}
    if missing:
        raise apsw.CorruptError(f"without {', '.join(sorted(missing))}")
    for table, columns in _COLUMNS.items():
        found = {str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")}
        if found != set(columns.split()):
            raise apsw.CorruptError(f"the columns of {table} are {sorted(found)}")
        db.execute(f"SELECT * FROM {table} LIMIT 1").fetchall()
    db.execute("SELECT 1 FROM blocks WHERE parent = x'' OR key = x''").fetchall()
    db.execute("SELECT model FROM usage ORDER BY model, value LIMIT 1").fetchall()
    # Short rows or an index: some 10 ms for 100,000 blocks.
    tables = "SELECT count(*) FROM blocks UNION SELECT count(*) FROM usage UNION SELECT total(blocks) FROM models"
    if len(db.execute(tables).fetchall()) != 1:
        raise apsw.CorruptError("the tables don't agree")
