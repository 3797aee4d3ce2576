"""Words for times in a question: "yesterday", "last week", "on Monday", "3 days ago", "in November", dates.

What they mean is reckoned in local time, from whole days; weeks begin on Mondays.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "couple": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7}

Days = tuple[date, date]
"""The first day, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class Span:
    """From `since` on and before `until`, both as of `time.time()`."""

    since: float
    until: float


def read_times(text: str, now: float) -> tuple[str, Span | None]:
    """`text` without its words for times, and the time that they mean; None where it has none.

    Of several, all from the first to the last is meant ("between Monday and Wednesday"); "since" and "after" have no
    end but now, "before" and "until" no beginning.
    """
    today = datetime.fromtimestamp(now).date()
    found = [(match, days) for match in _TIME.finditer(text) if (days := _days(match, today)) is not None]
    if not found:
        return text, None
    first, end = date(1970, 1, 2), today + timedelta(1)
    plain = [days for match, days in found if (match["how"] or "").lower() not in _OPEN]
    if plain:
        first, end = min(days[0] for days in plain), max(days[1] for days in plain)
    for match, days in found:
        how = (match["how"] or "").lower()
        first = max(first, days[how == "after"]) if how in ("since", "after") else first
        end = min(end, days[how == "until"]) if how in ("before", "until") else end
    rest = text
    for match, _ in reversed(found):
        rest = f"{rest[: match.start()]} {rest[match.end() :]}"
    return " ".join(rest.split()), Span(_moment(first), _moment(end))


def _moment(day: date) -> float:
    return datetime(day.year, day.month, day.day).timestamp()


_OPEN = ("since", "after", "before", "until")
_UNIT = "(day|week|month|year)"
_COUNT = rf"(\d{{1,3}}|(?:a )?couple(?: of)?|{'|'.join(_NUMBERS)})"
_DAY_NAMES, _MONTH_NAMES = "|".join(_WEEKDAYS), "|".join(_MONTHS)


def _back(unit: str, today: date, by: int) -> Days:
    """The whole day, week, month or year that is so many before that of today."""
    if unit == "day":
        day = today - timedelta(by)
        return day, day + timedelta(1)
    if unit == "week":
        monday = today - timedelta(today.weekday() + 7 * by)
        return monday, monday + timedelta(7)
    if unit == "year":
        return date(today.year - by, 1, 1), date(today.year - by + 1, 1, 1)
    month = today.year * 12 + today.month - 1 - by
    return date(month // 12, month % 12 + 1, 1), date((month + 1) // 12, (month + 1) % 12 + 1, 1)


def _number(text: str) -> int:
    words = text.lower().removesuffix(" of").split()
    return int(words[-1]) if words[-1].isdigit() else _NUMBERS[words[-1]]


def _rolling(match: re.Match[str], today: date) -> Days:
    unit, count = match[2].lower(), _number(match[1] or "one")
    days = {"day": 1, "week": 7, "month": 31, "year": 366}[unit] * count
    return today - timedelta(days), today + timedelta(1)


def _weekday(match: re.Match[str], today: date) -> Days:
    """The latest one that there was; a last one is not today."""
    back = (today.weekday() - _WEEKDAYS.index(match[2].lower())) % 7
    return _back("day", today, back or (7 if match[1] else 0))


def _month(match: re.Match[str], today: date) -> Days:
    """The latest one that began, or that of the year that is named."""
    number = _MONTHS.index(match[2].lower()) + 1
    if match[3]:
        return _back("month", date(int(match[3]), number, 1), 0)
    back = (today.month - number) % 12
    return _back("month", today, back or (12 if match[1] else 0))


_KINDS: dict[str, Callable[[re.Match[str], date], Days]] = {
    r"(?:the )?day before yesterday": lambda match, today: _back("day", today, 2),
    r"yesterday": lambda match, today: _back("day", today, 1),
    r"(?:earlier )?today": lambda match, today: _back("day", today, 0),
    rf"{_COUNT} {_UNIT}s? ago": lambda match, today: _back(match[2].lower(), today, _number(match[1])),
    rf"(?:the )?(?:last|past) {_COUNT} {_UNIT}s?": _rolling,
    rf"(?:the )?past() {_UNIT}": _rolling,
    rf"(this|last) {_UNIT}": lambda match, today: _back(match[2].lower(), today, int(match[1].lower() == "last")),
    rf"(last )?({_DAY_NAMES})": _weekday,
    r"(\d{4})-(\d\d)-(\d\d)": lambda match, today: _back("day", date(int(match[1]), int(match[2]), int(match[3])), 0),
    r"(\d{4})-(\d\d)": lambda match, today: _back("month", date(int(match[1]), int(match[2]), 1), 0),
    rf"(last )?({_MONTH_NAMES})(?: (?:of )?(\d{{4}}))?": _month,
}
_COMPILED = [(re.compile(pattern, re.IGNORECASE), mean) for pattern, mean in _KINDS.items()]
_BARE = r"\((?!\?)"
_TIME = re.compile(
    r"(?<![\w.-])(?:(?P<how>since|after|before|until|on|in|from|within|during|over|of|between|and|or) )?"
    rf"(?P<when>{'|'.join(re.sub(_BARE, '(?:', pattern) for pattern in _KINDS)})(?![\w-]|\.\w|/|\()",
    re.IGNORECASE,
)


def _days(match: re.Match[str], today: date) -> Days | None:
    """None for what is no date, and for a month's name that only looks like one ("you may")."""
    when = match["when"]
    if when.lower() in _MONTHS and (match["how"] or "").lower() not in ("in", "during", "of", *_OPEN):
        return None
    whole, mean = next((whole, mean) for kind, mean in _COMPILED if (whole := kind.fullmatch(when)))
    try:
        days = mean(whole, today)
    except (ValueError, OverflowError):
        return None
    return days if days[0].year >= 1970 else None
