"""Text from outside is shown without control characters, whichever event it comes in."""

import io
import re
from enum import Enum
from types import UnionType
from typing import Any, Literal, get_args, get_origin
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields

from ralph.core import events as e
from ralph.core.model import Outcome
from ralph.show.screen import Screen, make_screen

LIVE_LINE = re.compile(r"\x1b\[J|\x1b\[\?7[lh]|\x1b\[\d+A|\r")  # erase, no wrapping, up to the first of several rows
PAINT = re.compile(r"\x1b\[[0-9;]*m")
NASTY = st.one_of(
    st.text(max_size=200),
    st.text(alphabet="\x1b\x9b\x9d\x90[]0;8m?\\\x07\r\n\t\b\ud83d\ude00\u202e\u2028\x00ab", max_size=60),
    st.sampled_from(
        [
            "\x1b[2J\x1b[H",
            "\x1b]8;;http://evil\x07click\x1b]8;;\x07",
            "\x1b]0;title\x07",
            "\x1bPq#0;2;0;0;0\x1b\\",
            "\x9b31m",
            "[/bold][red]{markup}",
            "real\rfake",
            "a\u202eb",
            "\ud83d",
            "%s {0} {}",
        ]
    ),
)
NUMBERS = st.integers(-5, 10**9)
SECONDS = st.floats(-1e6, 1e9)


def anything(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type, with hostile texts."""
    plain = {str: NASTY, int: NUMBERS, float: SECONDS, bool: st.booleans(), type(None): st.none()}
    if kind in plain:
        return plain[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is tuple:
        return st.lists(anything(get_args(kind)[0]), max_size=3).map(tuple)
    if isinstance(kind, UnionType):
        return st.one_of([anything(part) for part in get_args(kind)])
    return st.builds(kind, **{field.name: anything(field.type) for field in fields(kind)})


EVENTS = anything(e.Event)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def show(stream: io.StringIO, events: list[e.Event], **options: object) -> str:
    screen: Screen = make_screen(stream, env={"TERM": "xterm"}, clock=lambda: 1e9, **options)  # type: ignore[arg-type]
    for event in events:
        screen(event)
    screen.tick()
    screen.close()
    return stream.getvalue()


def is_harmless(text: str) -> bool:
    return all(char in "\n" or char.isprintable() or char >= "\xa0" for char in text) and "\u202e" not in text


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENTS, max_size=4), st.booleans())
def test_plain_output_holds_no_control_character(events: list[e.Event], verbose: bool) -> None:
    text = show(io.StringIO(), events, verbose=verbose)
    assert is_harmless(text)
    text.encode()


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENTS, max_size=4), st.integers(1, 120), st.booleans())
def test_a_terminal_gets_no_escape_sequence_but_our_own(events: list[e.Event], width: int, color: bool) -> None:
    with patch("ralph.show.screen.terminal_size", return_value=(width, 24)):
        text = LIVE_LINE.sub("", show(Terminal(), events, color=color))
    assert is_harmless(PAINT.sub("", text) if color else text)
    text.encode()


@pytest.mark.parametrize("size", [1_000_000, 5_000_000])
def test_a_huge_text_is_cut(size: int) -> None:
    huge = "x y\t\x1b[31mz\n" * (size // 12)
    events: list[e.Event] = [
        e.AgentText(huge),
        e.ToolStarted("1", huge, huge),
        e.ToolFinished(id="1", name=huge, ok=True, output=huge, lines=10**6, chars=size),
        e.CheckFinished(name=huge, passed=False, exit_code=1, duration_s=1.0, log=huge, output=huge, action=huge),
        e.Notice(huge),
        e.ClaimRejected(huge, huge, huge),
        e.TodoUpdated((e.TodoItem(huge),) * 1000),
        e.RunFinished(
            outcome=Outcome.FAILED,
            reason=huge,
            iterations=1,
            cost_usd=1.0,
            duration_s=1.0,
            exit_code=1,
            branch=huge,
            worktree=huge,
        ),
    ]
    assert len(show(io.StringIO(), events)) < 50_000
