from __future__ import annotations

import time

import pytest

from kvd.source.content import read_content
from kvd.source.tokens import holds_token

RANDOM = "kJ8x2mQz7Rv4tYw9Lp3s"
"""Twenty letters and digits that no one issued."""
DIGITS = "9f86d081884c7d659a2feaa0c55ad015"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("config.json", f'{{"api_key": "{RANDOM}"}}'),
        ("config/app.yaml", f"database:\n  password: {RANDOM}\n"),
        ("app.yml", f"API-KEY: '{RANDOM}'\n"),
        ("settings.toml", f'access_token = "{DIGITS}"\n'),
        ("a.ini", f"[db]\nclientSecret={RANDOM}\n"),
        ("a.properties", f"spring.datasource.password={RANDOM}\n"),
        ("a.xml", f"<config><password>{RANDOM}</password></config>\n"),
        (".toolrc", f"auth_token={RANDOM}\n"),
        ("deploy.conf", f"secret_key_prod = {RANDOM}\n".replace("_key_prod", "_prod")),
        ("a.yaml", "aws: AKIA" + "ABCDEFGHIJKLMNOP\n"),
        ("a.json", '{"x": "' + "ghp_" + "a1B2" * 9 + '"}'),
        ("a.toml", "key = 'sk_live_" + "a1B2c3D4e5" * 2 + "'\n"),
    ],
)
def test_credentials_in_configuration(path: str, text: str) -> None:
    assert holds_token(path, text)
    assert read_content(path, text.encode()).skipped == "secret"
    assert read_content(path, text.encode(), trusted=True).skipped == ""


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.yaml", "password: ${DATABASE_PASSWORD}\n"),
        ("a.yaml", "password: changeme\n"),
        ("a.yaml", "api_key: your-api-key-goes-in-here\n"),
        ("a.yaml", "secretName: production-database-credentials\n"),
        ("a.yaml", "tokenizer: sentence-transformers/all-MiniLM-L6-v2\n"),
        ("a.json", f'{{"integrity": "sha512-{RANDOM}{RANDOM}"}}'),
        ("a.json", '{"token_url": "https://example.com/oauth2/v2.0/token"}'),
        ("a.toml", 'max_tokens = 4096\nrevision = "9f86d081884c7d659a2feaa0c55ad015"\n'),
        ("a.toml", f'commit = "{DIGITS}"\n'),
        # Source code is not configuration.
        ("test_tokens.py", f"api_key = '{RANDOM}'\n"),
        ("a.md", f"password: {RANDOM}\n"),
    ],
)
def test_what_only_mentions_one(path: str, text: str) -> None:
    assert not holds_token(path, text)


def test_no_input_takes_long() -> None:
    started = time.monotonic()
    for text in ("token" * 60_000, "secret = " + "a1" * 150_000, "password " + " " * 300_000, "key=" * 75_000):
        holds_token("a.yaml", text)
    assert time.monotonic() - started < 2.0
