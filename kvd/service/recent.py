"""Which repositories were used lately, for a daemon that starts.

A file beside each index holds the root; its time is that of the last use.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from kvd import paths
from kvd.errors import KvdError
from kvd.regular import check_regular, read_small

_SUFFIX = ".used"


def note_use(root: Path) -> None:
    """The index of `root` was used now. Where that can't be written, it will be as if it was not."""
    with suppress(KvdError, OSError):
        file = paths.index_file(root).with_suffix(_SUFFIX)
        check_regular(file)
        file.write_bytes(os.fsencode(root))


def recently_used(seconds: float, most: int) -> list[Path]:
    """Roots that still have an index and were used in the last `seconds`, the latest at the end, at most `most`."""
    found = []
    for file in (paths.cache_dir() / "index").glob(f"*{_SUFFIX}"):
        try:
            used = file.stat().st_mtime
            if time.time() - used > seconds:
                continue
        except OSError:
            continue
        root = used_root(file.with_suffix(".db"))
        if root is not None and file.with_suffix(".db").exists():
            found.append((used, root))
    return [root for _, root in sorted(found)[-most:]]


def used_root(index: Path) -> Path | None:
    """The root that was noted beside an index, None where there is no such note."""
    try:
        root = Path(os.fsdecode(read_small(index.with_suffix(_SUFFIX))))
        # Nothing else is a root than what would be kept in this place.
        return root if paths.index_file(root) == index else None
    except (OSError, ValueError):
        return None
