"""What all embedding models share here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LONGEST_TEXT = 1024
"""Tokens of a text that count, where the model was trained for so many: what is longer is cut."""


def to_unit_length(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Scale the rows of `vectors` ([texts, dimension]) to length 1, in place; those of zeros stay as they are."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.maximum(lengths, np.float32(1e-9))
    return vectors


def first_line(error: Exception) -> str:
    """What a library says went wrong."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
