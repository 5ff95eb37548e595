"""What happened at once is written at once: numbered, without keys, and no more of it than there is room for."""

import json
from typing import Any

from ralph.core import events
from ralph.world.records.scribe import Scribe

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


def test_many_events_are_one_write_with_a_number_each() -> None:
    paper = Paper()
    scribe = Scribe("run", [paper], seq=4)
    scribe(*talk("a", "b"), events.ToolStarted("t", "Read"))
    scribe(events.AgentText("c"))
    assert len(paper.writes) == 2
    assert [(one["seq"], one["type"]) for one in paper.told] == [
        (5, "agent_text"),
        (6, "agent_text"),
        (7, "tool_started"),
        (8, "agent_text"),
    ]


def test_a_key_in_one_event_leaves_the_others_as_they_are() -> None:
    paper = Paper()
    written = Scribe("run", [paper])(*talk("before", f"my key is {KEY}", "after"))
    assert [one["data"]["text"] for one in paper.told] == ["before", "my key is [redacted]", "after"]
    assert [event.text for event in written if isinstance(event, events.AgentText)][1] == "my key is [redacted]"


def test_half_a_character_in_one_event_does_not_spoil_the_others() -> None:
    paper = Paper()
    Scribe("run", [paper])(*talk("before", "half \ud83d", "after"))
    assert [one["data"]["text"] for one in paper.told] == ["before", "half ?", "after"]


def test_talk_beyond_its_room_is_left_out_and_the_numbers_have_no_gaps() -> None:
    paper = Paper()
    scribe = Scribe("run", [paper], most=300)
    heard = scribe(*talk("x" * 100, "y" * 100, "z" * 100), events.AgentResult(0.5))
    scribe(*talk("more"))
    scribe(events.AgentFinished(0, 1.0))
    assert len(heard) == 4, "listeners hear all of it"
    assert [one["seq"] for one in paper.told] == [1, 2, 3, 4]
    assert [one["type"] for one in paper.told] == ["agent_text", "agent_result", "notice", "agent_finished"]
    assert "3 events of this turn are left out" in paper.told[2]["data"]["text"]


def test_a_new_turn_has_room_again() -> None:
    paper = Paper()
    scribe = Scribe("run", [paper], most=300)
    scribe(*talk("x" * 100, "y" * 100, "z" * 100))
    scribe(events.AgentFinished(0, 1.0))
    scribe(events.AgentText("here again"))
    assert paper.told[-1]["data"]["text"] == "here again"


def test_what_has_no_name_in_the_journal_is_told_to_nobody() -> None:
    paper = Paper()
    assert Scribe("run", [paper])(events.AgentUnknown("odd")) == []
    assert paper.writes == []
