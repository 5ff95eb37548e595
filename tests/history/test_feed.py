"""A live view of a journal: everything near its end, and before that only what changes the history."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.core import events as e
from ralph.errors import UserError
from ralph.history.feed import RECENT, Feed
from ralph.store.journal import Journal
from ralph.store.writer import Writer


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
    return [type(news.event).__name__ for news in feed.read()]


def test_each_event_is_read_once(feed: Feed, writer: Callable[..., Any]) -> None:
    assert kinds(feed) == []
    writer(e.AgentText("one"))
    writer(e.CheckStarted("c"))
    assert kinds(feed) == ["AgentText", "CheckStarted"]
    assert kinds(feed) == []
    writer(e.AgentText("two"))
    assert kinds(feed) == ["AgentText"]


def test_an_unfinished_line_is_read_once_it_is_complete(feed: Feed, writer: Callable[..., Any], journal: Path) -> None:
    writer(e.AgentText("one"))
    whole = journal.read_bytes()
    journal.write_bytes(whole[:20])
    assert kinds(feed) == []
    with journal.open("ab") as file:
        file.write(whole[20:])
    assert kinds(feed) == ["AgentText"]


def test_foreign_and_torn_lines_are_skipped(feed: Feed, writer: Callable[..., Any], journal: Path) -> None:
    journal.write_bytes(b'nonsense\n{"type":"of_a_later_version","timestamp":"","run":"r","seq":1,"data":{}}\n\xff\n')
    writer(e.AgentText("one"))
    assert kinds(feed) == ["AgentText"]


def test_far_from_the_end_only_events_that_count_are_read(feed: Feed, writer: Callable[..., Any]) -> None:
    writer(e.IterationStarted(1, 10, "go"))
    for _ in range(3 * RECENT // 1000):
        writer(e.AgentText("x" * 1000))
    writer(e.CheckStarted("c"))
    news = feed.read()
    assert [type(one.event) for one in news if not one.is_recent] == [e.IterationStarted]
    recent = [one for one in news if one.is_recent]
    assert isinstance(recent[-1].event, e.CheckStarted)
    assert RECENT // 1000 * 0.8 < len(recent) < 2 * RECENT // 1000
    assert feed.left_out
    writer(e.AgentText("more"))
    assert [one.is_recent for one in feed.read()] == [True]
    assert not feed.left_out


def test_a_removed_journal_is_an_error(feed: Feed, journal: Path) -> None:
    journal.unlink()
    with pytest.raises(UserError, match="cannot read"):
        _ = feed.is_replaced
    with pytest.raises(UserError, match="cannot read"):
        Feed.open(journal)


def test_a_replaced_journal_is_noticed(feed: Feed, journal: Path) -> None:
    assert not feed.is_replaced
    (journal.parent / "other").touch()
    (journal.parent / "other").replace(journal)
    assert feed.is_replaced
