from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from kvd.recall.features import Features
from kvd.recall.table import TableEmbedder
from kvd.training.corpus import Bags, Corpus
from kvd.training.export import export
from kvd.training.model import Sums, Table
from kvd.training.train import Recipe, trained

ASKED = ["remove", "fetch", "begin", "paint", "sort", "wait", "encrypt", "compare"]
CODE = ["delete", "download", "start", "draw", "order", "sleep", "cipher", "equal"]
WORDS = [*ASKED, *CODE, "value", "item"]
RECIPE = Recipe(width=16, words=len(WORDS), buckets=64, batch=8, group=8, epochs=40, rate=0.02, dropped=0.0)


def corpus() -> Corpus:
    features = Features(WORDS, RECIPE.buckets)
    numbers = np.arange(len(ASKED))
    return Corpus(
        Bags.of([features.query(word) for word in ASKED]),
        Bags.of([features.document(f"value item {word}") for word in CODE]),
        np.zeros(len(ASKED), np.int32),
        numbers,
        numbers,
        np.zeros(len(ASKED), np.int8),
    )


def found(file: Path) -> int:
    """How many queries have their own document first."""
    embedder = TableEmbedder(file)
    documents = embedder.embed_documents([f"value item {word}" for word in CODE])
    return sum(int(np.argmax(documents @ embedder.embed_query(word))) == place for place, word in enumerate(ASKED))


def test_a_few_steps_bring_together_what_belongs_together(tmp_path: Path) -> None:
    export(Table(WORDS, RECIPE.buckets, RECIPE.width, RECIPE.seed), WORDS, 1, tmp_path / "before.npz")
    lines: list[str] = []
    recipes = (RECIPE, replace(RECIPE, dropped=0.1))
    export(trained(WORDS, corpus(), recipes, lines.append), WORDS, 2, tmp_path / "after.npz")
    assert found(tmp_path / "before.npz") <= 4
    assert found(tmp_path / "after.npz") == len(ASKED)
    assert TableEmbedder(tmp_path / "after.npz").version == 2
    assert sum(line.startswith("step 40/40") for line in lines) == 2


def test_what_ships_gives_the_vectors_that_were_trained(tmp_path: Path) -> None:
    table = Table(WORDS, RECIPE.buckets, RECIPE.width, RECIPE.seed)
    with torch.no_grad():
        table.asking.add_(torch.randn(len(table.asking)) / 3)
    export(table, WORDS, 1, tmp_path / "table.npz")
    texts = ["remove an item", "unknown words entirely", "delete delete value"]
    bags = Bags.of([Features(WORDS, RECIPE.buckets).query(text) for text in texts])
    with torch.no_grad():
        rows = table.rows()
        trained = table.embed(rows, table.asking, Sums(*bags.take(np.arange(len(texts))), len(rows)))
    shipped = np.stack([TableEmbedder(tmp_path / "table.npz").embed_query(text) for text in texts])
    assert np.sum(shipped * trained.numpy(), axis=1).min() > 0.999
