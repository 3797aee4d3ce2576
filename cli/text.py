"""Text for a terminal; numbers for people."""

from __future__ import annotations

from kvd.plain import clean as clean
from kvd.plain import clean_line as clean_line


def counted(count: int, noun: str) -> str:
    """`1 file`, `1,024 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def file_size(count: float) -> str:
    """Bytes, rounded, in decimal units."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def duration(seconds: float) -> str:
    """Roughly how long: `42 s`, `5 min`, `3 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"
