"""What a request confines its search to, checked."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from kvd.errors import UsageError
from kvd.recall.only import Only, path_matcher
from kvd.source.languages import LANGUAGES, language_named

_NEAR = 3


def confined(paths: Sequence[str], languages: Sequence[str]) -> Only:
    """Raises `UsageError` for what is no pattern, and for a language that kvd does not know."""
    if paths:
        path_matcher(tuple(paths))
    return Only(tuple(paths), tuple(_known(name) for name in languages))


def _known(name: str) -> str:
    language = language_named(name)
    if language:
        return language
    near = get_close_matches(name.lower(), sorted(LANGUAGES), n=_NEAR, cutoff=0.5)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UsageError(
        f"there is no language {name[:50]!r}{meant}", hint=f"kvd search QUERY --lang {near[0] if near else 'python'}"
    )
