"""Tokens and passwords in configuration: values that look random under a name that says secret, and known formats.

Source files are not searched: there such names are mostly of variables, and what looks random is test data.
"""

from __future__ import annotations

import math
import re
from collections import Counter

_CONFIGURATION = re.compile(
    r"\.(json|jsonc|json5|ya?ml|toml|ini|cfg|conf|config|properties|xml|plist|env|rc)$|(^|/)\.[^/.]+(rc)?$",
    re.IGNORECASE,
)

# A name that ends in one of these words, a sign between, and a value without blanks.
_NAMED = re.compile(
    r"(?:passw(?:or)?d|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|auth[_-]?key)"
    r"(?:[_-](?:prod|dev|test|live|base|value))?[\"']?>?\s{0,4}[:=]?\s{0,4}[\"']?([A-Za-z0-9+/_=.~-]{20,200})",
    re.IGNORECASE,
)
_KNOWN = re.compile(
    r"\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}|\bgithub_pat_[A-Za-z0-9_]{40}|\bglpat-[A-Za-z0-9_-]{20}"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{20}|\b[sr]k_live_[A-Za-z0-9]{20}|\bAIza[A-Za-z0-9_-]{35}|\bnpm_[A-Za-z0-9]{36}"
    r"|\bpypi-AgEI[A-Za-z0-9_-]{40}|\bhf_[A-Za-z0-9]{34}\b"
)
"""The prefixes that their issuers gave them so that they can be found."""

_LEAST_BITS = 3.4
"""Entropy of a character within the value. Random hexadecimal digits have 3.6 at this length, words 3 to 3.5."""
_LEAST_DIGITS = 3


def holds_token(path: str, text: str) -> bool:
    """Whether a configuration file has a credential in it."""
    if not _CONFIGURATION.search(path):
        return False
    return _KNOWN.search(text) is not None or any(_looks_random(value) for value in _NAMED.findall(text))


def _looks_random(value: str) -> bool:
    if sum(letter.isdigit() for letter in value) < _LEAST_DIGITS or not any(letter.isalpha() for letter in value):
        return False
    shares = [count / len(value) for count in Counter(value).values()]
    return -sum(share * math.log2(share) for share in shares) >= _LEAST_BITS
