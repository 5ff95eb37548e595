"""Events are written at once: numbered, without keys, and within the limit of a turn."""

import json
from typing import Any

import pytest

from ralph.core import events
from ralph.core.secrets import Redactor, secret_values
from ralph.store.writer import TEXT_LIMIT, Writer

KEY = "ghp_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"


class Paper:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def __call__(self, lines: bytes) -> None:
        self.writes.append(lines)

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in b"".join(self.writes).splitlines()]


def talk(*texts: str) -> list[events.Event]:
    return [events.AgentText(text) for text in texts]


def test_many_events_are_written_at_once_and_numbered() -> None:
    paper = Paper()
    writer = Writer("run", [paper], seq=4)
    writer(*talk("a", "b"), events.ToolStarted("t", "Read"))
    writer(events.AgentText("c"))
    assert len(paper.writes) == 2
    assert [(one["seq"], one["type"]) for one in paper.told] == [
        (5, "agent_text"),
        (6, "agent_text"),
        (7, "tool_started"),
        (8, "agent_text"),
    ]


def test_a_key_in_one_event_leaves_the_others_as_they_are() -> None:
    paper = Paper()
    written = Writer("run", [paper])(*talk("before", f"my key is {KEY}", "after"))
    assert [one["data"]["text"] for one in paper.told] == ["before", "my key is [redacted]", "after"]
    assert [event.text for event in written if isinstance(event, events.AgentText)][1] == "my key is [redacted]"


def test_a_lone_surrogate_in_one_event_leaves_the_others_as_they_are() -> None:
    paper = Paper()
    Writer("run", [paper])(*talk("before", "half \ud83d", "after"))
    assert [one["data"]["text"] for one in paper.told] == ["before", "half ?", "after"]


def test_talk_beyond_the_limit_is_left_out_without_gaps_in_the_numbers() -> None:
    paper = Paper()
    writer = Writer("run", [paper], most=300)
    heard = writer(*talk("x" * 100, "y" * 100, "z" * 100), events.AgentResult(cost_usd=0.5))
    writer(*talk("more"))
    writer(events.AgentFinished(exit_code=0, duration_s=1.0))
    assert len(heard) == 4, "listeners hear all of it"
    assert [one["seq"] for one in paper.told] == [1, 2, 3, 4]
    assert [one["type"] for one in paper.told] == ["agent_text", "agent_result", "notice", "agent_finished"]
    assert "3 events of this turn were left out" in paper.told[2]["data"]["text"]


def test_the_limit_applies_to_each_turn() -> None:
    paper = Paper()
    writer = Writer("run", [paper], most=300)
    writer(*talk("x" * 100, "y" * 100, "z" * 100))
    writer(events.AgentFinished(exit_code=0, duration_s=1.0))
    writer(events.AgentText("here again"))
    assert paper.told[-1]["data"]["text"] == "here again"


def test_events_without_a_name_are_dropped() -> None:
    paper = Paper()
    assert Writer("run", [paper])(events.AgentUnknown("odd")) == []
    assert paper.writes == []


def overheard(is_read: bool, *happened: events.Event) -> tuple[Writer, Paper, list[events.Event]]:
    """Events of an agent that has reached its limit, with and without a reader."""
    paper = Paper()
    writer = Writer("run", [paper], most=300, is_read=lambda: is_read)
    writer(*talk("x" * 300))
    return writer, paper, writer(*happened)


def test_dropped_events_are_counted() -> None:
    writer, paper, told = overheard(False, *talk("one", "two"), *talk("three"))
    assert told == []
    writer(events.AgentFinished(exit_code=0, duration_s=1.0))
    assert [one["type"] for one in paper.told] == ["notice", "agent_finished"]
    assert "4 events of this turn were left out" in paper.told[0]["data"]["text"]


def test_listeners_get_talk_beyond_the_limit() -> None:
    _, _, told = overheard(True, *talk("one", f"my key is {KEY}"))
    assert told == talk("one", "my key is [redacted]")


def test_events_of_ralph_itself_are_always_written() -> None:
    _, paper, told = overheard(False, *talk("one"), events.AgentResult(cost_usd=0.5))
    assert told == [*talk("one"), events.AgentResult(cost_usd=0.5)]
    assert [one["type"] for one in paper.told] == ["agent_result"]


def test_a_key_that_begins_in_a_dropped_event_is_redacted() -> None:
    reads = False
    writer = Writer("run", [], most=300, is_read=lambda: reads)
    writer(*talk("x" * 300))
    writer(*talk("-----BEGIN RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA"))
    reads = True
    assert writer(*talk("7bq98hx", "-----END RSA PRIVATE KEY-----", "done")) == talk("", "", "done")


def test_only_the_key_is_redacted_if_it_comes_line_by_line() -> None:
    writer = Writer("run", [])
    key = talk("-----BEGIN PGP PRIVATE KEY BLOCK-----", "Version: GnuPG v2", "", "lQOYBFab", "=abcd")
    end = "-----END PGP PRIVATE KEY BLOCK-----"
    assert writer(*key, *talk(end, "done")) == talk("[redacted]", "", "", "", "", "", "done")
    assert writer(*talk(end, "done", "grep 'PRIVATE KEY-----' *", "done")) == talk(
        end, "done", "grep 'PRIVATE KEY-----' *", "done"
    )


@pytest.mark.parametrize(
    "value", ["first line of it\nsecond line of it", "tab\tand \x1b escape", 'quote " and \\', "geheimer Schlüssel 🔑"]
)
def test_a_known_value_is_redacted_however_json_escapes_it(value: str) -> None:
    paper = Paper()
    writer = Writer("run", [paper], redact=Redactor(secret_values({"MY_TOKEN": value})))
    writer(*talk(f"it is {value}."), *talk(*value.splitlines()))
    assert [one["data"]["text"] for one in paper.told] == [
        "it is [redacted].",
        *["[redacted]"] * len(value.split("\n")),
    ]


@pytest.mark.parametrize("before", range(TEXT_LIMIT // 2 - len(KEY), TEXT_LIMIT // 2 + 1, 8))
def test_the_cut_of_a_long_text_does_not_split_a_key(before: int) -> None:
    (told,) = Writer("run", [])(*talk("x" * (before - 1) + " " + KEY + " " + "y" * TEXT_LIMIT))
    assert "[cut]" in told.text
    assert KEY[:8] not in told.text
    assert KEY[-8:] not in told.text


def test_a_key_in_the_middle_of_a_long_text_is_redacted_to_its_end() -> None:
    writer = Writer("run", [])
    writer(*talk("x" * 50_000 + "-----BEGIN RSA PRIVATE KEY-----" + "x" * 50_000))
    assert writer(*talk("7bq98hx")) == talk("")
