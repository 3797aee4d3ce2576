"""The process that parses: `python -m kvd.source.child`, started by `kvd.source.cutter`.

Frames on stdin and stdout: a little-endian u32 length, then UTF-8 JSON; a request is followed by the file's bytes in a
frame of their own. It ends at the end of its input.
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO

from kvd.source.content import read_content

_MEMORY = 4_000_000_000
"""Address space in bytes: a parser that runs wild fails here and not in the whole machine."""


_LONGEST_S = 60
"""For one file; a parser that loops would otherwise outlive the process that waits for it."""


def write_frame(file: BinaryIO, data: bytes) -> None:
    file.write(struct.pack("<I", len(data)) + data)


def read_frame(file: BinaryIO) -> bytes | None:
    """The next frame, or None at the end of the input or in the middle of a frame."""
    head = file.read(4)
    if len(head) < 4:
        return None
    (size,) = struct.unpack("<I", head)
    data = file.read(size)
    return data if len(data) == size else None


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def main() -> None:
    """Answer requests `{"path", "trusted"}` + bytes with `Content.to_json`."""
    _limit(resource.RLIMIT_AS, _MEMORY)
    _limit(resource.RLIMIT_CORE, 0)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    # What a library prints must not end up between the frames.
    sys.stdout = sys.stderr
    while (head := read_frame(source)) is not None and (data := read_frame(source)) is not None:
        request: dict[str, Any] = json.loads(head)
        signal.alarm(_LONGEST_S)
        answer = read_content(request["path"], data, trusted=request["trusted"]).to_json()
        signal.alarm(0)
        write_frame(sink, json.dumps(answer).encode())
        sink.flush()


if __name__ == "__main__":
    main()
