"""Text from repositories and models, made safe for terminals and for other programs' output."""

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


def printable(path: str) -> str:
    """A file's name as text: bytes that are not UTF-8 are lone surrogates in it, which UTF-8 can't have."""
    return clean_line(path.encode("utf-8", "backslashreplace").decode("utf-8"))
