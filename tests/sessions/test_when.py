"""Words for times, as of a Tuesday."""

from __future__ import annotations

from datetime import datetime

import pytest

from kvd.sessions.when import read_times

NOW = datetime(2026, 12, 1, 15, 30).timestamp()


@pytest.mark.parametrize(
    ("words", "first", "end"),
    [
        ("today", "2026-12-01", "2026-12-02"),
        ("yesterday", "2026-11-30", "2026-12-01"),
        ("the day before yesterday", "2026-11-29", "2026-11-30"),
        ("3 days ago", "2026-11-28", "2026-11-29"),
        ("a week ago", "2026-11-23", "2026-11-30"),
        ("two months ago", "2026-10-01", "2026-11-01"),
        ("a couple of days ago", "2026-11-29", "2026-11-30"),
        ("last week", "2026-11-23", "2026-11-30"),
        ("Last month", "2026-11-01", "2026-12-01"),
        ("last year", "2025-01-01", "2026-01-01"),
        ("this week", "2026-11-30", "2026-12-07"),
        ("in the last 3 days", "2026-11-28", "2026-12-02"),
        ("within the past week", "2026-11-24", "2026-12-02"),
        ("on Monday", "2026-11-30", "2026-12-01"),
        ("on Tuesday", "2026-12-01", "2026-12-02"),
        ("last tuesday", "2026-11-24", "2026-11-25"),
        ("in November", "2026-11-01", "2026-12-01"),
        ("in december", "2026-12-01", "2027-01-01"),
        ("last December", "2025-12-01", "2026-01-01"),
        ("in March 2025", "2025-03-01", "2025-04-01"),
        ("in May", "2026-05-01", "2026-06-01"),
        ("on 2026-11-24", "2026-11-24", "2026-11-25"),
        ("in 2026-02", "2026-02-01", "2026-03-01"),
        ("between Friday and Sunday", "2026-11-27", "2026-11-30"),
        ("since Friday", "2026-11-27", "2026-12-02"),
        ("after Friday", "2026-11-28", "2026-12-02"),
        ("before 2026-11-24", "1970-01-02", "2026-11-24"),
        ("since 2026-11-01 until 2026-11-24", "2026-11-01", "2026-11-25"),
    ],
)
def test_words_for_times(words: str, first: str, end: str) -> None:
    rest, span = read_times(f"what was said of retries {words}?", NOW)
    assert span is not None
    assert [datetime.fromtimestamp(moment).isoformat() for moment in (span.since, span.until)] == [
        f"{first}T00:00:00",
        f"{end}T00:00:00",
    ]
    assert rest == "what was said of retries ?"


@pytest.mark.parametrize(
    "text",
    [
        "how may a session expire?",
        "what does today() return in yesterday.py?",
        "the last_week of 2026-13-01 and 2026-02-31",
        "who marches on, 1.2026-11-24?",
        "999 years ago",
        "a day",
        "",
    ],
)
def test_what_only_looks_like_a_time(text: str) -> None:
    assert read_times(text, NOW) == (text, None)
