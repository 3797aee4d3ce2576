"""SQLite without a halt of the other threads.

apsw holds Python's global lock while a connection's own `with` begins and commits, and while a connection closes. In
there SQLite waits for other programs' locks and for the disk: all threads of the daemon would stand still so long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import apsw


@contextmanager
def transaction(db: apsw.Connection) -> Iterator[None]:
    """All or nothing of what is written within. Not to be nested.

    It begins as one that writes: only there SQLite waits for another's lock. Raises `apsw.BusyError` when that is not
    let go in time.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # After some faults SQLite has done it already.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def close(db: apsw.Connection) -> None:
    """Close a connection that wrote: the log goes into the file first, which closing may do too."""
    with suppress(apsw.Error):
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    db.close()
