"""The table while it is trained: a vector a word and an n-gram bucket, and weights for asking and for being found."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from kvd.recall.features import Features


class Sums:
    """Weighted sums of rows, for many texts at once, as a sparse matrix and its transpose."""

    def __init__(
        self, rows: NDArray[np.int64], factors: NDArray[np.float32], offsets: NDArray[np.int64], height: int
    ) -> None:
        """`offsets` has one entry more than there are texts; `height` is the table's."""
        texts = len(offsets) - 1
        self.matrix = _sparse(offsets, rows, factors, (texts, height))
        order = np.argsort(rows, kind="stable")
        column = np.repeat(np.arange(texts), np.diff(offsets))[order]
        starts = np.searchsorted(rows[order], np.arange(height + 1))
        self.transposed = _sparse(starts, column, factors[order], (height, texts))


def _sparse(
    starts: NDArray[np.int64], columns: NDArray[np.int64], values: NDArray[np.float32], shape: tuple[int, int]
) -> Tensor:
    with warnings.catch_warnings():
        # Torch calls its sparse matrices a beta.
        warnings.filterwarnings("ignore", "Sparse CSR")
        return torch.sparse_csr_tensor(
            torch.from_numpy(starts),
            torch.from_numpy(columns),
            torch.from_numpy(values),
            shape,
            check_invariants=False,
        )


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, table: Tensor, sums: Sums) -> Tensor:
        context.sums = sums
        return sums.matrix @ table

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return context.sums.transposed @ gradients[0].contiguous(), None


def _summed(table: Tensor, sums: Sums) -> Tensor:
    result: Tensor = _Summed.apply(table, sums)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return result


class Table(nn.Module):
    """A known word's vector is its own plus the mean of its n-grams': what is rare leans on how it is written."""

    def __init__(self, vocabulary: list[str], buckets: int, width: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        features = Features(vocabulary, buckets)
        grams = [[row - len(vocabulary) for row in features.grams(word)] for word in vocabulary]
        lengths = np.array([len(item) for item in grams])
        rows = np.array([row for item in grams for row in item], np.int64)
        factors = (1.0 / np.repeat(np.maximum(lengths, 1), lengths)).astype(np.float32)
        self._spelling = Sums(rows, factors, np.concatenate([[0], np.cumsum(lengths)]), buckets)
        self.words = nn.Parameter(torch.randn(len(vocabulary), width) * 0.1)
        self.buckets = nn.Parameter(torch.randn(buckets, width) * 0.1)
        self.asking = nn.Parameter(torch.zeros(len(vocabulary) + buckets))
        self.found = nn.Parameter(torch.zeros(len(vocabulary) + buckets))
        self.scale = nn.Parameter(torch.tensor(3.0))

    def rows(self) -> Tensor:
        """All vectors, shape [words + buckets, width]."""
        spelled = _summed(self.buckets, self._spelling)
        return torch.cat([self.words + spelled, self.buckets])

    def embed(self, table: Tensor, weights: Tensor, sums: Sums) -> Tensor:
        """Unit vectors of texts, shape [texts, width]."""
        return functional.normalize(_summed(table * torch.exp(weights)[:, None], sums), dim=1)
