"""Misspelt words, with a real vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from kvd import paths
from kvd.recall import database
from kvd.recall.index import IndexWriter, NewFile, only_writer
from kvd.recall.stems import query_terms, terms
from kvd.recall.vocabulary import corrected
from kvd.types import Chunk
from tests.fakes.hashed_words import HashedWords

Open = Callable[..., apsw.Connection]


@pytest.fixture
def vocabulary(tmp_path: Path) -> Open:
    """Makes an index with a chunk of each text."""

    def make(*texts: str) -> apsw.Connection:
        file = paths.index_file(tmp_path)
        with only_writer(file, lambda: False):
            db, _ = database.open_for_writing(file, tmp_path, "1")
            chunks = [(Chunk("a.py", "python", "", 1, 1, 0, len(text), text), ()) for text in texts]
            IndexWriter(db, HashedWords()).put([NewFile("a.py", 1, 1, 1, b"h", "python", "", False, chunks)])
        return db

    return make


def meant(db: apsw.Connection, word: str) -> str:
    (term,) = corrected(db, query_terms(word))
    return term


@pytest.mark.parametrize(
    ("typo", "word"),
    [
        ("transaciton", "transaction"),
        ("transactoins", "transactions"),
        ("admisison", "admission"),
        ("connetcion", "connection"),
        ("configuratoin", "configuration"),
        ("initializaiton", "initialization"),
        ("embedidng", "embedding"),
        ("managemnet", "management"),
        ("iteratro", "iterator"),
        ("trasnaction", "transaction"),
        ("sesison", "session"),
        ("reisdent", "resident"),
        ("vocabluary", "vocabulary"),
        ("squence", "sequence"),
    ],
)
def test_a_misspelt_word_is_the_one_that_it_is_most_like(vocabulary: Open, typo: str, word: str) -> None:
    db = vocabulary(
        "transaction transit transform admission admit connection connexion configuration configure2 initialization",
        "embedding embargo management manager iterator iterate session resident president vocabulary sequence",
    )
    assert [meant(db, typo)] == query_terms(word)


def test_of_words_that_are_as_alike_it_is_the_more_common_one(vocabulary: Open) -> None:
    db = vocabulary("resident", "resiient", "resident")
    assert meant(db, "resicent") == "resident"


@pytest.mark.parametrize("word", ["photosynthesis", "elephants", "transmogrify"])
def test_a_word_that_is_like_none_stays(vocabulary: Open, word: str) -> None:
    db = vocabulary("transaction admission connection photon elevation")
    assert [meant(db, word)] == query_terms(word)


def test_many_words_with_the_same_first_letter_hide_none(vocabulary: Open) -> None:
    letters = "abcdefghijklmnop"
    many = [f"s{a}{b}{c}quaint" for a in letters for b in letters for c in letters]
    db = vocabulary(" ".join(many), "synchronizer")
    assert set(terms("synchronizer")) == {meant(db, "synchronzier")} == {meant(db, "snychronizer")}
