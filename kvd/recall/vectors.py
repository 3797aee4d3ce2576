"""Vectors behind an index: chunks that have none get one, from the cache or from the embedder, batch by batch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import apsw

from kvd.recall import database
from kvd.recall.embed import Embedder, embedded_text, label
from kvd.recall.index import VECTOR_SCALE, as_int8
from kvd.recall.vector_cache import VectorCache, vector_key
from kvd.sqlite import transaction

_FIRST_BATCH, _LARGEST_BATCH = 8, 512
_BATCH_S = 0.05
"""What a batch should take: so long a question may have to share the machine with it."""


def fill_vectors(
    db: apsw.Connection,
    embedder: Embedder,
    cache: VectorCache,
    stop: Callable[[], bool],
    *,
    compute: bool = True,
    writing: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Give chunks their vectors until all have one or `stop()`; without `compute` only those that the cache has.

    `writing` gives what to hold while something is written: `only_writer`, where the caller does not hold that
    already. Each batch is one transaction: what is done stays done. Raises what the embedder and `writing` raise.
    """
    name, size, last = label(embedder), _FIRST_BATCH, 0
    while not stop():
        rows = database.rows(
            db,
            "SELECT chunk_id, path, scope, text FROM pending JOIN chunks ON chunks.id = chunk_id"
            " JOIN files ON files.id = file_id WHERE chunk_id > ? ORDER BY chunk_id LIMIT ?",
            (last, size),
        )
        if not rows:
            return
        started = time.monotonic()
        texts = {number: embedded_text(path, scope, text) for number, path, scope, text in rows}
        keys = {number: vector_key(name, text) for number, text in texts.items()}
        vectors = _sound(cache.get(set(keys.values())), embedder.dimension)
        missing = {keys[number]: text for number, text in texts.items() if keys[number] not in vectors}
        if missing and compute:
            made = as_int8(embedder.embed_documents(list(missing.values())))
            new = {key: vector.tobytes() for key, vector in zip(missing, made, strict=True)}
            cache.put(new)
            vectors |= new
        with writing():
            _add(db, name, {number: vectors[key] for number, key in keys.items() if key in vectors})
        last = int(rows[-1][0])
        size = _next_size(size, time.monotonic() - started)


def _sound(kept: Mapping[bytes, bytes], dimension: int) -> dict[bytes, bytes]:
    """Without what is damaged, which is made again: what `as_int8` makes has a length that only rounding changes.

    A vector of length 0 is made again too.
    """
    import numpy as np

    whole = {key: vector for key, vector in kept.items() if len(vector) == dimension}
    rows = np.frombuffer(b"".join(whole.values()), np.int8).reshape(len(whole), dimension)
    off = np.abs(np.linalg.norm(rows.astype(np.float32), axis=1) - VECTOR_SCALE)
    sound = off <= 0.5 * dimension**0.5
    return {key: vector for (key, vector), right in zip(whole.items(), sound, strict=True) if right}


def _add(db: apsw.Connection, name: str, vectors: dict[int, bytes]) -> None:
    """Leaves out chunks that are gone since they were read, and all if the index is of another embedder now."""
    with transaction(db):
        if database.read_meta(db).get("embedder") != name:
            return
        waiting = "SELECT chunk_id FROM pending JOIN json_each(?) ON chunk_id = value"
        numbers = [int(row[0]) for row in database.rows(db, waiting, (json.dumps(list(vectors)),))]
        db.executemany(
            "INSERT INTO vectors (rowid, embedding) VALUES (?, vec_int8(?))",
            [(number, vectors[number]) for number in numbers],
        )
        db.executemany("DELETE FROM pending WHERE chunk_id = ?", [(number,) for number in numbers])


def _next_size(size: int, seconds: float) -> int:
    """At most twice as many as before."""
    fitting = int(size * _BATCH_S / max(seconds, 1e-4))
    return max(1, min(fitting, 2 * size, _LARGEST_BATCH))
