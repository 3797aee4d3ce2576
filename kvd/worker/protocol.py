"""Frames between the daemon and its engine child.

A frame is `<II` (bytes of JSON, bytes of blob, little-endian), a JSON object in UTF-8, and the blob: encoded KV
blocks travel as they are instead of as text. Requests carry `id`, `method`, `params`; answers `id` and `result`
or `error` (as `KvdError.to_json`); events `event`, `data` and, when they belong to a request, its `id`. Every frame of
the child may carry `counters` (see `COUNTERS`), and does when they differ from those that it told last: if the child
dies, only what it has done since its last frame is not counted. Vectors are float16, little-endian, in base64.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STATE_FORMAT = 1
"""Of a conversation's state (`kvd.worker.conversation`), which the daemon keeps; another one's is not read."""

_HEADER = struct.Struct("<II")
_MAX_JSON = 64 << 20
_MAX_BLOB = 1 << 30

COUNTERS = (
    "cells_hit",
    "hot_hit",
    "hot_miss",
    "cold_hit",
    "cold_miss",
    "cold_declined",
    "swapped_in",
    "prefetched",
    "hot_evicted",
    "integrity_failures",
)
"""What a child counts once its model is loaded; one that is 0 may be missing.

`cells_hit`: blocks that llama.cpp's cells still held. `hot_*`, and `cold_*` for the misses among them: the others,
looked up in the hot pool and in the cold store, by result; "declined" are not looked up, because to compute them is
predicted to be faster. `swapped_in`: loaded from the store into the pool, `prefetched`: of these, for a draft of a
question, which nothing else here counts. `hot_evicted`: left the pool for want of room.
`integrity_failures`: pool or cells were found broken.
"""

Message = dict[str, Any]


class ProtocolError(Exception):
    """The peer sent something that is not a frame."""


def encode_vector(vector: NDArray[np.float32]) -> str:
    """A vector (`[dimension]`) as text."""
    return base64.b64encode(vector.astype("<f2").tobytes()).decode()


def decode_vector(text: str) -> NDArray[np.float32]:
    """The inverse of `encode_vector`, up to float16's rounding. Raises `ValueError` for anything else."""
    import numpy as np

    return np.frombuffer(base64.b64decode(text, validate=True), "<f2").astype(np.float32)


def encode_frame(message: Message, blob: bytes = b"") -> bytes:
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return b"".join((_HEADER.pack(len(body), len(blob)), body, blob))


def _lengths(header: bytes) -> tuple[int, int]:
    json_length, blob_length = _HEADER.unpack(header)
    if json_length > _MAX_JSON or blob_length > _MAX_BLOB:
        raise ProtocolError(f"frame of {json_length} + {blob_length} bytes")
    return json_length, blob_length


def _decoded(body: bytes) -> Message:
    message = json.loads(body.decode("utf-8", "surrogatepass"))
    if not isinstance(message, dict):
        raise ProtocolError("a frame's JSON is not an object")
    return message


def read_frame(stream: IO[bytes]) -> tuple[Message, bytes] | None:
    """Read one frame; None at end of file, also in the middle of a frame (the peer died)."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    json_length, blob_length = _lengths(header)
    body = stream.read(json_length)
    blob = stream.read(blob_length)
    if len(body) < json_length or len(blob) < blob_length:
        return None
    return _decoded(body), blob


async def async_read_frame(reader: asyncio.StreamReader) -> tuple[Message, bytes] | None:
    """`read_frame` for asyncio."""
    try:
        json_length, blob_length = _lengths(await reader.readexactly(_HEADER.size))
        body = await reader.readexactly(json_length)
        blob = await reader.readexactly(blob_length)
    except asyncio.IncompleteReadError:
        return None
    return _decoded(body), blob
