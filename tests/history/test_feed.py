from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.core import events as e
from ralph.errors import UserError
from ralph.history.feed import RECENT, Feed
from ralph.store.journal import Journal
from ralph.store.writer import Writer

FOREVER = float("inf")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.ndjson"
    path.touch()
    return path


@pytest.fixture
def writer(journal: Path) -> Any:
    file = Journal(journal).open()
    yield Writer("r", [file])
    file.close()


@pytest.fixture
def feed(journal: Path) -> Any:
    made = Feed.open(journal)
    yield made
    made.close()


def kinds(feed: Feed) -> list[str]:
    return [type(news.event).__name__ for news in feed.look(FOREVER)]


def test_what_is_new_comes_once(feed: Feed, writer: Callable[..., Any]) -> None:
    assert kinds(feed) == []
    writer(e.AgentText("one"))
    writer(e.CheckStarted("c"))
    assert kinds(feed) == ["AgentText", "CheckStarted"]
    assert kinds(feed) == []
    writer(e.AgentText("two"))
    assert kinds(feed) == ["AgentText"]


def test_half_a_line_waits_for_the_other_half(feed: Feed, writer: Callable[..., Any], journal: Path) -> None:
    writer(e.AgentText("one"))
    whole = journal.read_bytes()
    journal.write_bytes(whole[:20])
    assert kinds(feed) == []
    with journal.open("ab") as file:
        file.write(whole[20:])
    assert kinds(feed) == ["AgentText"]


def test_foreign_and_torn_lines_are_passed_over(feed: Feed, writer: Callable[..., Any], journal: Path) -> None:
    journal.write_bytes(b'nonsense\n{"type":"of_a_later_version","timestamp":"","run":"r","seq":1,"data":{}}\n\xff\n')
    writer(e.AgentText("one"))
    assert kinds(feed) == ["AgentText"]


def test_of_long_ago_only_what_counts_is_read(feed: Feed, writer: Callable[..., Any]) -> None:
    writer(e.IterationStarted(1, 10, "go"))
    line = "x" * 1000
    for _ in range(2 * RECENT // 1000):
        writer(e.AgentText(line))
    writer(e.CheckStarted("c"))
    counted = [type(news.event) for news in feed.count(FOREVER)]
    assert counted == [e.IterationStarted, e.CheckStarted]


def test_the_end_of_a_long_journal_is_shown_first(feed: Feed, writer: Callable[..., Any], journal: Path) -> None:
    for number in range(3 * RECENT // 1000):
        writer(e.AgentText(f"{number} " + "x" * 1000))
    late = Feed.open(journal)
    for eye in (feed, late):  # one that has not looked for long, and one that comes now
        first, *rest = eye.look(FOREVER)
        assert RECENT - 2000 < first.size + sum(news.size for news in rest) <= RECENT
        assert eye.left_out > 0
        assert not eye.has_grown
    late.close()
    writer(e.CheckStarted("c"))
    assert kinds(feed) == ["CheckStarted"]


def test_a_look_that_has_no_time_still_gets_on(feed: Feed, writer: Callable[..., Any]) -> None:
    for text in ("one", "two", "three"):
        writer(e.AgentText(text))
    found: list[str] = []
    looks = 0
    while True:
        found += [news.event.text for news in feed.look(-1.0) if isinstance(news.event, e.AgentText)]
        looks += 1
        if not feed.has_grown:
            break
    assert (found, looks) == (["one", "two", "three"], 4)


def test_a_journal_that_is_gone_is_said(feed: Feed, journal: Path) -> None:
    journal.unlink()
    with pytest.raises(UserError, match="cannot read"):
        _ = feed.is_replaced
    with pytest.raises(UserError, match="cannot read"):
        Feed.open(journal)


def test_a_journal_that_was_written_anew_is_noticed(feed: Feed, journal: Path) -> None:
    assert not feed.is_replaced
    (journal.parent / "other").touch()
    (journal.parent / "other").replace(journal)
    assert feed.is_replaced
