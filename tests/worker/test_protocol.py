from __future__ import annotations

import numpy as np
import pytest

from kvd.worker.protocol import decode_vector, encode_vector


def test_a_vector_survives_being_text_up_to_half_precision() -> None:
    vector = np.random.default_rng(1).normal(size=256).astype(np.float32)
    text = encode_vector(vector)
    assert len(text) == 684
    back = decode_vector(text)
    assert back.dtype == np.float32
    assert np.array_equal(back, vector.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("text", ["?", "AAA", "AA==", "AAAA"])
def test_what_is_no_vector_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"base64|padding|multiple"):
        decode_vector(text)
