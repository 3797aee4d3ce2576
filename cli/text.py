"""Text from repositories and models, made safe for a terminal; numbers for people."""

from __future__ import annotations

import re

# Escape sequences whole, where they arrive whole: CSI, OSC and the like up to their end.
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x9b[0-?]*[ -/]*[@-~]")
# Then every control character but \n and \t, and what reorders or hides text.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufff9-\ufffb]"
)


def clean(text: str) -> str:
    """`text` without terminal escapes and control characters; line ends and tabs stay."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text))


def clean_line(text: str) -> str:
    """`clean`, on one line."""
    return " ".join(clean(text).split("\n")).replace("\t", " ")


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
