"""What a path says about the use of a file: tests, benchmarks, examples, documents and data answer fewer questions."""

from __future__ import annotations

import re
from functools import lru_cache

_TEST = re.compile(
    r"(^|/)(tests?|testing|specs?|__tests__|testdata|fixtures?|mocks?|e2e)(/|$)"
    r"|(^|/)(test_[^/]*|conftest)\.\w+$|[._-](test|tests|spec|e2e)\.\w+$|(^|/)\w+(Test|Tests|Spec|IT)\.\w+$"
)
_EXAMPLE = re.compile(r"(^|/)(examples?|samples?|demos?|tutorials?|playground)(/|$)", re.IGNORECASE)
_BENCHMARK = re.compile(
    r"(?i:(^|/)(micro)?bench(es|marks?)?(/|$)|(^|/)bench(mark)?[_-][^/]*\.\w+$|[._-]bench(mark)?s?\.\w+$)"
    r"|(^|/)\w+Benchmarks?\.\w+$"
)
_DOCUMENT = re.compile(r"\.(md|mdx|markdown|rst|txt|adoc|org|tex|html?)$|(^|/)(docs?|documentation)/", re.IGNORECASE)
_DATA = re.compile(r"\.(json|jsonl|ya?ml|toml|ini|cfg|csv|tsv|xml|properties|po|css|scss)$|(^|/)\.", re.IGNORECASE)
_OLD = re.compile(
    r"(^|/)(vendor|vendored|node_modules|external|third[_-]?party|legacy|compat|deprecated|_?vendor|locales?|i18n)(/|$)",
    re.I,
)
_BUILT = re.compile(r"(^|/)dist/|[.-](min|bundle)\.\w+$")
_STUB = re.compile(r"\.(d\.ts|pyi)$")

_SAID = 0.8
"""For a kind that the question names: it may as well mean code for it, as a client for tests is."""

_KINDS = (
    (_TEST, 0.4, {"test", "spec", "fixtur", "mock"}),
    (_EXAMPLE, 0.6, {"exampl", "sampl", "demo", "tutorial"}),
    (_BENCHMARK, 0.4, {"bench", "benchmark", "performanc"}),
    (_DOCUMENT, 0.6, {"doc", "document", "documentation", "readm", "changelog", "guid", "licens"}),
    (_DATA, 0.7, {"config", "configuration", "json", "yaml", "yml", "toml", "css", "style", "xml", "ini"}),
    (_OLD, 0.6, {"vendor", "legacy", "compat", "deprecat", "local", "i18n"}),
    (_BUILT, 0.6, {"dist", "bundl"}),
    (_STUB, 0.8, {"stub", "typ"}),
)


def path_factor(path: str, said: set[str]) -> float:
    """What to multiply a score with. A question that says "test" may mean the tests: that kind is damped little."""
    factor = 1.0
    for kind in _kinds(path):
        _, damping, wanted = _KINDS[kind]
        factor *= _SAID if wanted & said else damping
    return max(factor, 0.35)


@lru_cache(maxsize=8_192)
def _kinds(path: str) -> tuple[int, ...]:
    return tuple(number for number, (pattern, _, _) in enumerate(_KINDS) if pattern.search(path))
