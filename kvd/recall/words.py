"""Texts to the words that are indexed and asked for.

An identifier counts as a whole and as its parts: `HTTPServer_v2` gives `httpserver_v2 http server v 2`. Plain words
are reduced to a common form (`routes`, `routing` -> `rout`), the same way when indexing and when asking.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

WORDS_VERSION = 2
"""Raise it when the same text would give other words: indexes are then made anew."""

MAX_WORD = 64
"""Longer runs of letters are data; their parts are kept, the whole is not."""

_RUN = re.compile(r"\w+")
_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_a-zA-Z]+")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


STOPWORDS = _set(
    """
    a about all also an and any are as at be been but by can code could did do does doing done each find for from get
    gets getting give had has have having how i if in into is it its just like make makes many may me might more most
    much must my no not of off on one only or other our out over own please same she should show so some such tell than
    that the their them then there these they this those through to too up us use used uses using very want was we were
    what when where which while who whom why will with within without would you your
    explain describe file files implementation implemented implements work works
    """
)


def words(text: str) -> list[str]:
    """The words of a text in order, repeats included."""
    found: list[str] = []
    for run in _RUN.findall(text):
        found += _of_run(run)
    return found


def word_counts(text: str) -> Counter[str]:
    """How often each word of `words(text)` occurs."""
    counts: Counter[str] = Counter()
    for run, number in Counter(_RUN.findall(text)).items():
        for word in _of_run(run):
            counts[word] += number
    return counts


@lru_cache(maxsize=65_536)
def _of_run(run: str) -> tuple[str, ...]:
    parts = tuple(part[:MAX_WORD] for part in parts_of(run))
    whole = run.lower().strip("_")
    if len(whole) > MAX_WORD or len(parts) == 1:
        return parts
    return (whole, *parts) if whole else ()


def _split(run: str) -> list[str]:
    parts: list[str] = []
    for part in _PARTS.findall(run):
        if len(part) > 1 and _WIDE.match(part):
            # Scripts without spaces: overlapping pairs stand in for words.
            parts += [part[i : i + 2] for i in range(len(part) - 1)]
        else:
            parts.append(part)
    return parts


@lru_cache(maxsize=65_536)
def parts_of(run: str) -> tuple[str, ...]:
    """The reduced parts of one identifier, without the whole."""
    return tuple(_stem(part.lower()) for part in _split(run))


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    """A light reduction for English: plural, -ing, -ed, and a final e. Short words and others stay."""
    if len(word) <= 3 or not word.isascii():
        return word
    word = _without_plural(word)
    for ending in ("ing", "ed", "er", "or"):
        base = word[: -len(ending)]
        if word.endswith(ending) and len(base) >= 3 and any(letter in "aeiouy" for letter in base):
            if len(base) > 3 and base[-1] == base[-2] and base[-1] not in "lsz":
                base = base[:-1]
            word = base
            break
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def _without_plural(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def query_words(query: str) -> list[str]:
    """The distinct words of a question without those that every question has.

    Where nothing else is left, a query of one or two words keeps them: `for` may be what is looked for.
    """
    runs = _RUN.findall(query)
    told = [word for run in runs if run.lower() not in STOPWORDS for word in _of_run(run)]
    kept = [word for word in dict.fromkeys(told) if len(word) > 1 or len(runs) == 1]
    if not kept and len(runs) <= 2:
        kept = list(dict.fromkeys(word for run in runs for word in _of_run(run)))
    return kept


def identifiers(query: str) -> list[str]:
    """What in a question is written like a name in code, in lower case: `get_user`, `fooBar`, `Session.close`."""
    names = re.findall(r"[^\W\d]\w*(?:(?:\.|::|#|->)[^\W\d]\w*)*", query)
    return list(dict.fromkeys(name.lower() for name in names if _like_code(name)))


def _like_code(name: str) -> bool:
    if re.search(r"_|\.|::|#|->|\d|[a-z][A-Z]|[A-Z]{2}", name):
        return True
    return name[:1].isupper()
