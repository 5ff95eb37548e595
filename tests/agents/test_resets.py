"""When a usage limit ends, according to its message."""

import time
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from ralph.agents.failures import resets_at

UTC = ZoneInfo("UTC")


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


NOW = at("2026-11-15T06:30:00")


@pytest.fixture
def local_time(monkeypatch):
    """Sets the local time zone for one test."""

    def become(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield become
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ('"resetsAt":1794727065', 1794727065),
        ('"resetsAt": 1794727065000', 1794727065),
        ("resets_at=1794727065", 1794727065),
        ('"resets_at":1794727065.0', 1794727065),
        ("Claude AI usage limit reached|1794727065", 1794727065),
        ("Claude AI usage limit reached|1794727065000", 1794727065),
        ('"resets_in_seconds":3600', NOW + 3600),
        ("Retry-After: 30", NOW + 30),
        ("retry-after: 30\nother: x", NOW + 30),
        ('{"retry-after":"30"}', NOW + 30),
        ('"retryDelay":"34.5s"', NOW + 34.5),
        ("You've hit your limit · resets 7:17am (UTC)", at("2026-11-15T07:17:00")),
        ("You’ve hit your limit · resets 7:17am (UTC)", at("2026-11-15T07:17:00")),
        ("limit reached ∙ resets 7pm (Asia/Tokyo)", at("2026-11-15T19:00:00", "Asia/Tokyo")),
        ("Your limit will reset at 7pm (Asia/Tokyo).", at("2026-11-15T19:00:00", "Asia/Tokyo")),
        ("resets 3pm (Asia/Tokyo)", at("2026-11-16T15:00:00", "Asia/Tokyo")),  # over half an hour ago there
        ("resets 12am (UTC)", at("2026-11-16T00:00:00")),
        ("resets 12:30pm (UTC)", at("2026-11-15T12:30:00")),
        ("resets 6am (UTC)", at("2026-11-16T06:00:00")),
        ("resets 6:25am (UTC)", at("2026-11-15T06:25:00")),  # just over, so it does not mean tomorrow
        ("resets Nov 20 at 5pm (UTC)", at("2026-11-20T17:00:00")),
        ("resets Nov 20, 5pm (Europe/Berlin)", at("2026-11-20T17:00:00", "Europe/Berlin")),
        ("resets Jan 2, 1am (UTC)", at("2027-01-02T01:00:00")),
        ("try again at Nov 16th, 2026 7:20 AM.", "2026-11-16T07:20:00"),
        ("try again at Nov 16, 2026, 7:20 AM.", "2026-11-16T07:20:00"),
        ("You’ve hit your usage limit. … or try again at 7:20 AM.", "2026-11-15T07:20:00"),
        ("try again at 11:05 PM", "2026-11-15T23:05:00"),
        ("resets 7pm", "2026-11-15T19:00:00"),
        ("try again in 5 hours 3 minutes", NOW + 5 * 3600 + 180),
        ("try again in 2 days, 3 hours and 4 minutes.", NOW + 2 * 86400 + 3 * 3600 + 240),
        ("Please try again in 20s.", NOW + 20),
        ("try again in 1h30m", NOW + 5400),
        ("resets in 3h 12m", NOW + 3 * 3600 + 720),
        ("Please retry in 34.074824224s.", NOW + 34.074824224),
        ("try again in 350ms", NOW + 0.35),
        ("try again in 1 minute", NOW + 60),
        ("resets at 2026-11-16T07:20:00Z", at("2026-11-16T07:20:00")),
        ('"resetsAt":"2026-11-16T07:20:00+00:00"', at("2026-11-16T07:20:00")),
        ("resets 2026-11-16 07:20 UTC", at("2026-11-16T07:20:00")),
    ],
)
def test_a_reset_time_is_understood(text: str, moment: float | str, local_time) -> None:
    local_time("Europe/Berlin")
    expected = at(moment, "Europe/Berlin") if isinstance(moment, str) else moment
    assert resets_at(text, NOW) == pytest.approx(expected, rel=0, abs=0.01)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Overloaded",
        "This request would exceed your account's rate limit. Please try again later.",
        "try again in a moment",
        "resets the counter at 7 sharp",
        "limit reached|12",
        "resets 25pm (UTC)",
        "resets Feb 31, 7pm (UTC)",
        '"resetsAt":99999999999999',
        '"resetsAt":1000000000',
        "try again at Nov 16, 2199 7:20 AM",
        "Retry-After: soon",
        "resets 2026-13-99T99:99:00Z",
    ],
)
def test_a_text_without_a_reset_time_has_none(text: str) -> None:
    assert resets_at(text, NOW) is None


def test_an_unknown_time_zone_means_local_time(local_time) -> None:
    local_time("Asia/Tokyo")
    assert resets_at("resets 7pm (Nowhere/City)", NOW) == at("2026-11-15T19:00:00", "Asia/Tokyo")
    assert resets_at("resets 7pm (../../etc/passwd)", NOW) == at("2026-11-15T19:00:00", "Asia/Tokyo")


@pytest.mark.parametrize(
    ("now", "text", "moment"),
    [
        # The clocks go forward in the night: the next day has 23 hours.
        ("2026-03-07T22:00:00", "resets 9pm (America/New_York)", "2026-03-08T21:00:00"),
        # There is no half past two in that night, so it means the hour after it.
        ("2026-03-08T00:00:00", "resets 2:30am (America/New_York)", "2026-03-08T03:30:00"),
        # The clocks go back: half past one comes twice, and the first one is meant.
        ("2026-11-01T00:00:00", "resets 1:30am (America/New_York)", "2026-11-01T01:30:00"),
        ("2026-10-31T23:00:00", "resets 10pm (America/New_York)", "2026-11-01T22:00:00"),
        ("2026-12-31T23:30:00", "resets 1am (America/New_York)", "2027-01-01T01:00:00"),
    ],
)
def test_a_day_may_have_23_or_25_hours(now: str, text: str, moment: str) -> None:
    zone = "America/New_York"
    assert resets_at(text, at(now, zone)) == at(moment, zone)
