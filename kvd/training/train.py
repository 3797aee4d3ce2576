"""Contrastive training: of a batch's places, each query is to be nearest to its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from kvd.training.corpus import Corpus
from kvd.training.model import Sums, Table


@dataclass(frozen=True, slots=True)
class Recipe:
    """`group` pairs of a batch are of one package: telling its places apart is what search has to do."""

    width: int = 160
    words: int = 20_000
    buckets: int = 4_000
    batch: int = 2_048
    group: int = 256
    epochs: int = 3
    rate: float = 0.003
    dropped: float = 0.1
    """Which share of a query's words is left out, at random."""
    seed: int = 1


RECIPES = (Recipe(), Recipe(group=512, epochs=4, dropped=0.2))
"""The table that ships is the mean of what they give: they begin alike, and the mean is a little better than both."""


def trained(words: list[str], corpus: Corpus, recipes: Sequence[Recipe], say: Callable[[str], None]) -> Table:
    """The mean of one training a recipe; they have to have table's size and seed in common."""
    states = []
    for recipe in recipes:
        table = Table(words, recipe.buckets, recipe.width, recipe.seed)
        train(table, corpus, recipe, say)
        states.append({name: value.clone() for name, value in table.state_dict().items()})
    table.load_state_dict({name: sum(state[name] for state in states) / len(states) for name in states[0]})
    return table


def train(table: Table, corpus: Corpus, recipe: Recipe, say: Callable[[str], None]) -> None:
    """Fit `table`; the rate falls to 0 in a line after a short rise."""
    chance = np.random.default_rng(recipe.seed)
    optimizer = torch.optim.Adam(
        [
            {"params": [table.words, table.buckets], "lr": recipe.rate},
            {"params": [table.asking, table.found], "lr": recipe.rate},
            {"params": [table.scale], "lr": recipe.rate},
        ],
        betas=(0.9, 0.99),
    )
    steps = recipe.epochs * (len(corpus.package) // recipe.batch)
    warm = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
    )
    started, losses = perf_counter(), []
    for step, which in enumerate(_batches(corpus.package, recipe, chance)):
        loss = _loss(table, corpus, which, recipe.dropped, chance)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
        if (step + 1) % 50 == 0 or step + 1 == steps:
            seconds = perf_counter() - started
            say(f"step {step + 1}/{steps}, loss {np.mean(losses[-50:]):.3f}, {seconds:.0f} s")


def _batches(package: NDArray[np.int32], recipe: Recipe, chance: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    groups = recipe.batch // recipe.group
    for _ in range(recipe.epochs):
        # Sorted by package, in a random order within: runs of `group` are of one package, or of two.
        noise = chance.random(len(package))
        order = np.lexsort((noise, package))
        order = np.roll(order, int(chance.integers(recipe.group)))
        runs = order[: len(order) // recipe.group * recipe.group].reshape(-1, recipe.group)
        runs = runs[chance.permutation(len(runs))]
        for start in range(0, len(runs) - groups + 1, groups):
            yield runs[start : start + groups].reshape(-1)


def _loss(
    table: Table, corpus: Corpus, which: NDArray[np.int64], dropped: float, chance: np.random.Generator
) -> Tensor:
    rows = table.rows()
    asked, factors, offsets = corpus.queries.take(which)
    factors = factors * (chance.random(len(factors)) >= dropped).astype(np.float32)
    queries = table.embed(rows, table.asking, Sums(asked, factors, offsets, len(rows)))
    documents = table.embed(rows, table.found, Sums(*corpus.documents.take(which), len(rows)))
    scores = queries @ documents.T * torch.exp(table.scale)
    place, query = corpus.place[which], corpus.asked[which]
    same = (place[:, None] == place[None, :]) | (query[:, None] == query[None, :])
    np.fill_diagonal(same, False)
    scores = scores.masked_fill(torch.from_numpy(same), -1e4)
    target = torch.arange(len(which))
    return (functional.cross_entropy(scores, target) + functional.cross_entropy(scores.T, target)) / 2
