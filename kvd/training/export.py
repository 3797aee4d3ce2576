"""A trained table to the file that ships: 8 bits a number, a factor for each row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from kvd.recall.features import FEATURES_VERSION
from kvd.training.model import Table


def export(table: Table, words: list[str], version: int, target: Path) -> None:
    """Write what `kvd.recall.table` reads."""
    with torch.no_grad():
        vectors = table.rows().numpy()
        asking, found = torch.exp(table.asking).numpy(), torch.exp(table.found).numpy()
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-9)
    whole = np.rint(vectors / largest * 127).astype(np.int8)
    # Only ratios between rows matter: the vectors' lengths are normalised, so the scales may be brought into
    # float16's range.
    steps = largest[:, 0] / 127
    common = float(np.median(steps))
    np.savez(
        target,
        features=np.int64(FEATURES_VERSION),
        version=np.int64(version),
        words=np.frombuffer("\n".join(words).encode(), np.uint8),
        buckets=np.int64(len(vectors) - len(words)),
        vectors=whole,
        asking=(asking * steps / common).astype(np.float16),
        found=(found * steps / common).astype(np.float16),
    )
