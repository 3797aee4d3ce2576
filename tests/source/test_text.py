from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvd.source.text import decode

TEXT = "naïve = 'œuvre'\nb = 2\n"


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        codecs.BOM_UTF8 + TEXT.encode(),
        codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
        codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
        codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"),
        codecs.BOM_UTF32_BE + TEXT.encode("utf-32-be"),
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", "\r").encode(),
    ],
)
def test_encodings_and_line_ends(data: bytes) -> None:
    assert decode(data) == TEXT


def test_latin_1_where_it_is_not_utf_8() -> None:
    assert decode("café = 1\n".encode("latin-1")) == "café = 1\n"
    assert decode(b"lone \xff byte\n") == "lone ÿ byte\n"


def test_mixed_line_ends_are_lines_each() -> None:
    assert decode(b"a\rb\r\nc\n\rd\n\n") == "a\nb\nc\n\nd\n\n"


@pytest.mark.parametrize(
    "data",
    [
        b"text with \0 in it",
        bytes(range(1, 256)) * 4,
        codecs.BOM_UTF16_LE + b"a\0\0\0",
    ],
)
def test_binary(data: bytes) -> None:
    assert decode(data) is None


def test_odd_utf_16_does_not_fail() -> None:
    assert decode(codecs.BOM_UTF16_LE + b"a\0b") == "a\ufffd"


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    text = decode(data)
    assert text is None or ("\r" not in text and "\0" not in text and isinstance(text.encode("utf-8"), bytes))
