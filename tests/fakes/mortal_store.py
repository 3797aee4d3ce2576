"""Random writes, touches, drops, evictions and vacuums of one store, in a process that may die at any write to disk.

    python mortal_store.py STORE FRAMES SEED STEPS FATAL ROOMY TIGHT

FRAMES is a JSON list of chains, each a list of `[key, parent, tokens, data]` (hex, but for the number). Every step
prints two lines of JSON: what will be done, and, when that is committed, which keys are stored and what the most on
disk was. Before the write numbered FATAL (0: never) half of its bytes are written and the process kills itself. ROOMY
and TIGHT are caps.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import apsw

from kvd.errors import StoreError
from kvd.kv.store import BlockStore, StoredBlock
from kvd.paths import bytes_on_disk

STORE, FRAMES = Path(sys.argv[1]), Path(sys.argv[2])
SEED, STEPS, FATAL, ROOMY, TIGHT = (int(argument) for argument in sys.argv[3:8])
SYSTEM = apsw.vfs_names()[0]
writes = most_on_disk = 0


def is_fatal() -> bool:
    global writes
    writes += 1
    return writes == FATAL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class MortalFile(apsw.VFSFile):
    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        global most_on_disk
        if is_fatal():
            super().xWrite(data[: len(data) // 2], offset)
            die()
        super().xWrite(data, offset)
        most_on_disk = max(most_on_disk, bytes_on_disk(STORE))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        if is_fatal():
            die()
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if is_fatal():
            die()
        super().xSync(flags)


class MortalVFS(apsw.VFS):
    def __init__(self) -> None:
        super().__init__("mortal", SYSTEM, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> MortalFile:  # noqa: N802
        return MortalFile(SYSTEM, name, flags)


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def stored_keys() -> list[bytes]:
    db = apsw.Connection(str(STORE), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [bytes(row[0]) for row in db.execute("SELECT key FROM blocks ORDER BY key")]
    finally:
        db.close()


def chains(whose: bytes) -> list[list[StoredBlock]]:
    return [
        [
            StoredBlock(bytes.fromhex(key), bytes.fromhex(parent), whose, tokens, bytes.fromhex(data))
            for key, parent, tokens, data in chain
        ]
        for chain in json.loads(FRAMES.read_text())
    ]


def step(store: BlockStore, dice: random.Random, bodies: list[list[StoredBlock]]) -> None:
    verb = dice.choices(("put", "touch", "drop", "gc", "vacuum"), (60, 15, 8, 10, 7))[0]
    keys = stored_keys()
    some = dice.sample(keys, min(len(keys), dice.randint(1, 5)))
    if verb == "put":
        body = dice.choice(bodies)
        cap = dice.choice((ROOMY, TIGHT, TIGHT))
        say(verb=verb, keys=[block.key.hex() for block in body], roomy=cap == ROOMY)
        store.put(body, cap)
    elif verb == "touch":
        say(verb=verb, keys=[key.hex() for key in some])
        store.touch(some)
    elif verb == "drop":
        say(verb=verb, keys=[key.hex() for key in some[:1]])
        store.drop(some[:1])
    else:
        say(verb=verb, keys=[], roomy=verb == "vacuum")
        store.gc(ROOMY if verb == "vacuum" else dice.choice((TIGHT, TIGHT // 3)))


def main() -> None:
    dice = random.Random(SEED)
    bodies = chains(b"f" * 32)
    vfs = MortalVFS()
    try:
        store = BlockStore(STORE)
        say(opened=True, rebuilt=store.rebuilt)
        for _ in range(STEPS):
            refused = ""
            try:
                step(store, dice, bodies)
            except StoreError as error:
                refused = error.message
            say(stored=[key.hex() for key in stored_keys()], most_on_disk=most_on_disk, refused=refused)
        store.close()
    finally:
        vfs.unregister()


if __name__ == "__main__":
    main()
