"""Words to the form under which they are looked up, where `suggest` and `suggestions` are one.

Vectors are made of the forms of `words.py`, which stay nearer to what was written.
"""

from __future__ import annotations

from functools import lru_cache

from kvd.recall.words import parts_of, query_words, words

_ENDINGS = (
    ("ization", "iz", 3),
    ("isation", "is", 3),
    ("ation", "", 4),
    ("ion", "", 4),
    ("ment", "", 6),
    ("abl", "", 4),
    ("ibl", "", 4),
    ("iv", "", 5),
    ("at", "", 4),
)
"""What derives a word (without its final e), what to put in its place, and how many letters must stay before it."""

ENDINGS = ("", "ion", "ation", "ator", "ativ", "at", "ment", "abl", "ibl", "iv", "ing", "er", "or", "ed")
"""What may have been taken off a word, here or in `words.py`."""

_WHOLE = frozenset(("format", "repeat", "threat", "concat"))
"""Words that only look derived."""


@lru_cache(maxsize=65_536)
def base(word: str) -> str:
    """A word of `parts_of` without what derives it from another one; most words stay as they are."""
    if len(word) <= 5 or word in _WHOLE or not word.isascii():
        return word
    for ending, instead, least in _ENDINGS:
        rest = word[: -len(ending)]
        if not word.endswith(ending) or len(rest) < least or (ending == "ion" and rest[-1] not in "st"):
            continue
        return base(rest + instead).removesuffix("e")
    return word


def terms(text: str) -> list[str]:
    """The words of a text as they are indexed, in order, repeats included."""
    return [base(word) for word in words(text)]


def query_terms(query: str) -> list[str]:
    """The distinct words to look up for a question."""
    return list(dict.fromkeys(base(word) for word in query_words(query)))


@lru_cache(maxsize=65_536)
def name_terms(name: str) -> tuple[str, ...]:
    """The parts of one identifier as they are indexed, without the whole."""
    return tuple(base(part) for part in parts_of(name))
