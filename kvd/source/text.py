"""Bytes of a file to its text.

A line ends with `\\n`, `\\r\\n` or a lone `\\r`. All three become `\\n` here, once, so that everything after this
counts lines by `\\n` alone and still gives the numbers that editors show.
"""

from __future__ import annotations

import codecs
import re

# UTF-32 first: its little-endian mark starts with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_MAX_CONTROL_SHARE = 0.02


def decode(data: bytes) -> str | None:
    """The text without its byte order mark and with `\\n` line ends; None for what is not text.

    A mark decides the encoding. Without one: UTF-8 where that is valid, else latin-1, which maps every byte to one
    character and so never loses a line. NUL, or many control characters outside UTF-8, mean a binary file.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            text = data[len(mark) :].decode(encoding, "replace")
            return None if "\0" in text else _normal_line_ends(text)
    if b"\0" in data:
        return None
    try:
        return _normal_line_ends(data.decode("utf-8"))
    except UnicodeDecodeError:
        if len(_CONTROLS.findall(data)) > len(data) * _MAX_CONTROL_SHARE:
            return None
        return _normal_line_ends(data.decode("latin-1"))


def _normal_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
