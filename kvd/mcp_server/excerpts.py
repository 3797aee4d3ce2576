"""The code of found chunks, trimmed: the daemon tells places, an agent wants what is there."""

from __future__ import annotations

from pathlib import Path

from kvd.mcp_server.results import Found
from kvd.plain import clean, clean_line, printable
from kvd.regular import read_small
from kvd.rpc.messages import Message
from kvd.source.text import decode

MAX_LINES = 40
MAX_CHARACTERS = 2_000
"""Of the code of one result."""

_MAX_BYTES = 16 << 20


def excerpts(root: Path, sources: list[Message]) -> list[Found]:
    """The sources with the first lines of their code; without any where the file is not there any more."""
    return [_excerpt(root, source) for source in sources]


def _excerpt(root: Path, source: Message) -> Found:
    first, last = source["start_line"], source["end_line"]
    kept = trimmed(_lines(root / source["path"])[first - 1 : last])
    return Found(
        path=printable(source["path"]),
        start_line=first,
        end_line=last,
        symbol=clean_line(source["symbol"]),
        language=source["language"],
        code="\n".join(kept),
        omitted_lines=last - first + 1 - len(kept),
    )


def trimmed(lines: list[str]) -> list[str]:
    """The first lines, as many as the limits allow; the first one is cut rather than left out."""
    kept: list[str] = []
    left = MAX_CHARACTERS
    for line in lines[:MAX_LINES]:
        plain = clean(line)
        if len(plain) >= left:
            return kept or [plain[:left]]
        kept.append(plain)
        left -= len(plain) + 1
    return kept


def _lines(file: Path) -> list[str]:
    try:
        text = decode(read_small(file, _MAX_BYTES, follow=False))
    except OSError:
        return []
    return (text or "").split("\n")
