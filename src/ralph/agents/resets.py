"""When does a stated limit end? Every wording that agents use for it, as a moment in epoch seconds."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import tzinfo

_ZONE = r"(?:\s*+\((?P<zone>[\w/+-]{1,40})\))?"
_CLOCK = r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))?\s*+(?P<half>[ap])\.?m\b\.?"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?(?:,?\s{1,4}(?P<year>\d{4}))?"
_DATE = rf"(?P<month>{'|'.join(_MONTHS)})[a-z]{{0,6}}\.?\s{{1,4}}{_DAY},?\s{{1,4}}(?:at\s{{1,4}})?"
_UNITS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

_EPOCH = re.compile(
    r"\bresets?_?at\"?\s*+[:=]\s*+\"?(\d{9,13})(?:\.\d+)?\b|\blimit reached\|(\d{9,13})\b", re.IGNORECASE
)
_SECONDS = re.compile(
    r"\bresets?_in_seconds\"?\s*+[:=]\s*+\"?(\d{1,9}(?:\.\d{1,9})?)"
    r"|\bretry-after(?:-seconds)?\"?\s*+[:=]\s*+\"?(\d{1,9}(?:\.\d{1,9})?)\b(?![ \t]*+[a-z])"
    r"|\bretryDelay\"?\s*+[:=]\s*+\"?(\d{1,9}(?:\.\d{1,9})?)s\b",
    re.IGNORECASE,
)
_MILLISECONDS = re.compile(r"\bretry-after-ms\"?\s*+[:=]\s*+\"?(\d{1,12})\b", re.IGNORECASE)
# What stands before a span of time, however it is put: "retry-after: 60s", "wait 2 minutes", "try again in an hour".
_BEFORE_SPAN = re.compile(
    r"\b(?:try again|retry|retrying|resets?|reset|renews?|available|wait|come back|back off)(?: (?:again|it|now))?"
    r"(?:[ _-](?:in|after|for|time))?\"?\s*+[:=]?\s*+\"?(?:(?:about|at least|approximately|another|~) ?)?",
    re.IGNORECASE,
)
_PART = re.compile(
    r"(\d{1,9}(?:\.\d{1,9})?|an?)\s*+"
    r"(milliseconds?|ms|weeks?|w|days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)(?![a-z])"
    r"[\s,]{0,3}(?:and\s{1,3})?",
    re.IGNORECASE,
)
_MOMENT = re.compile(
    rf"\b(?:resets?(?: (?:at|on))?|try again (?:at|on)|available (?:again )?at)\s{{1,4}}(?:{_DATE})?{_CLOCK}{_ZONE}",
    re.IGNORECASE,
)
_ISO = re.compile(
    r"\b(?:resets?(?: (?:at|on))?|try again (?:at|after)|retry-after:?|resets?_?at\"?\s*+[:=])\s*+\"?"
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d{1,9})?(?:\s?(?:Z|UTC|[+-]\d\d:?\d\d))?)",
    re.IGNORECASE,
)
_HTTP_DATE = re.compile(
    r"\bretry-after\"?\s*+[:=]\s*+\"?((?:mon|tue|wed|thu|fri|sat|sun), \d.{20,26}?GMT)", re.IGNORECASE
)

JUST_PASSED = 600.0  # a time of day that is over by less was meant: the limit has just ended
_LONGEST = 62 * 86400.0


def resets_at(text: str, now: float) -> float | None:
    """The moment at which the limit that `text` states ends, seen from the moment `now`."""
    for moment in (_epoch(text), _after(text, now), _iso(text), _http_date(text), _clock(text, now)):
        if moment is not None and now - 86400 <= moment <= now + _LONGEST:
            return moment
    return None


def _epoch(text: str) -> float | None:
    found = _EPOCH.search(text)
    if not found:
        return None
    number = float(found[1] or found[2])
    return number / 1000 if number > 1e11 else number


def _after(text: str, now: float) -> float | None:
    if found := _SECONDS.search(text):
        return now + float(found[1] or found[2] or found[3])
    if found := _MILLISECONDS.search(text):
        return now + float(found[1]) / 1000
    for before in _BEFORE_SPAN.finditer(text):
        if span := _span(text, before.end()):
            return now + span
    return None


def _span(text: str, at: int) -> float:
    """The time that is stated from `at` on: `1h30m`, `2 days, 3 hours and 4 minutes`."""
    total = 0.0
    while part := _PART.match(text, at):
        total += (1.0 if part[1].lower().startswith("a") else float(part[1])) * _unit(part[2])
        at = part.end()
    return total


def _unit(word: str) -> float:
    word = word.lower()
    return _UNITS["ms"] if word.startswith(("ms", "milli")) else _UNITS[word[0]]


def _iso(text: str) -> float | None:
    from datetime import datetime

    found = _ISO.search(text)
    if not found:
        return None
    try:
        return datetime.fromisoformat(found[1].replace(" UTC", "+00:00").replace("UTC", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None


def _http_date(text: str) -> float | None:
    found = _HTTP_DATE.search(text)
    if not found:
        return None
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(found[1]).timestamp()
    except (ValueError, OverflowError):
        return None


def _clock(text: str, now: float) -> float | None:
    from datetime import datetime, timedelta

    found = _MOMENT.search(text)
    if not found or not 1 <= int(found["hour"]) <= 12:
        return None
    here = datetime.fromtimestamp(now, _zone(found["zone"]))
    hour = int(found["hour"]) % 12 + (12 if found["half"].lower() == "p" else 0)
    try:
        then = here.replace(hour=hour, minute=int(found["minute"] or 0), second=0, microsecond=0, fold=0)
        if found["month"]:
            then = then.replace(
                year=int(found["year"] or here.year),
                month=_MONTHS.index(found["month"].lower()) + 1,
                day=int(found["day"]),
            )
            if not found["year"] and then.timestamp() < now - 86400:
                then = then.replace(year=then.year + 1)
        elif then.timestamp() < now - JUST_PASSED:
            then += timedelta(days=1)
        return then.timestamp()
    except (ValueError, OverflowError):
        return None


def _zone(name: str | None) -> "tzinfo | None":
    if not name:
        return None
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return None
