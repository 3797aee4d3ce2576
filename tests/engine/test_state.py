import struct

import numpy as np
import pytest

from kvd.engine.state import MAGIC, StateBuffer, StateFormatError, parse_state
from kvd.types import KVShape

SHAPE = KVShape(n_layer=2, width=4)


def a_state(positions: list[int]) -> StateBuffer:
    buffer = StateBuffer(SHAPE, positions, sequence=7)
    for layer in range(2):
        for row, position in enumerate(positions):
            buffer.keys(layer)[row] = position + layer / 4
            buffer.values(layer)[row] = -position - layer / 4
    return buffer


def test_bytes_are_those_of_the_documented_layout() -> None:
    expected = struct.pack("<IiII", MAGIC, 7, 1, 1) + struct.pack("<iIi", 5, 1, 7) + struct.pack("<II", 0, 2)
    for value in (5.0, 5.25, -5.0, -5.25):
        expected += struct.pack("<iQ", 1, 8) + np.full(4, value, "<f2").tobytes()
    assert a_state([5]).blob.tobytes() == expected


def test_rows_come_back_in_the_order_of_positions() -> None:
    state = parse_state(a_state([30, 2, 17]).blob)
    assert state.positions.tolist() == [2, 17, 30]
    assert state.keys[:, :, 0].tolist() == [[2, 17, 30], [2.25, 17.25, 30.25]]
    assert state.values[:, :, 3].tolist() == [[-2, -17, -30], [-2.25, -17.25, -30.25]]


def test_every_cut_is_noticed() -> None:
    blob = a_state([0, 1]).blob
    for length in range(blob.size):
        with pytest.raises(StateFormatError):
            parse_state(blob[:length].copy())


def test_bytes_left_over_are_noticed() -> None:
    with pytest.raises(StateFormatError, match="left over"):
        parse_state(np.append(a_state([0]).blob, np.zeros(1, np.uint8)))


@pytest.mark.parametrize(
    ("offset", "value", "what"),
    [
        (0, 1, "magic"),
        (8, 2, "streams"),
        (16 + 4, 2, "several sequences"),
        (16 + 12, 1, "v_trans"),
        (16 + 12 + 8, 8, "type 8"),
        (16 + 12 + 12, 7, "7 bytes"),
    ],
)
def test_every_unknown_field_is_noticed(offset: int, value: int, what: str) -> None:
    blob = a_state([0]).blob
    struct.pack_into("<I", blob.data, offset, value)
    with pytest.raises(StateFormatError, match=what):
        parse_state(blob)
