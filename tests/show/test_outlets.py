"""Hostile text in every field of every event stays harmless in everything that ralph shows."""

import re
from collections.abc import Callable

import pytest
from tests.fuzz import shown
from tests.hostile_text import COMMANDS_A_TERMINAL, EVIL

from ralph.show.words import whereabouts

HARM = f"{EVIL}\0\b\r\x85\u2028\u2029\u061c\u200e\ufff9\U000e0041\nforged: landed\x1b[31mred"
PAINT = re.compile("\x1b\\[[0-9;]*m")
OUTLETS: dict[str, Callable[[str | shown.Filling], str]] = {
    "lines on a screen": lambda text: "\n".join(shown.lines(text, 80, False)),
    "all lines in a pipe": lambda text: "\n".join(shown.lines(text, 0, True)),
    "pieces of a page": shown.on_a_page,
    "a summary": lambda text: "\n".join(shown.in_summary(text)),
    "a report": shown.in_report,
    "what came of a backlog": shown.of_work,
}


@pytest.mark.parametrize("outlet", OUTLETS)
@pytest.mark.parametrize("flag", [True, False])
def test_no_event_can_send_commands_to_a_terminal_or_browser(outlet: str, flag: bool) -> None:
    made = OUTLETS[outlet](shown.Filling(HARM, flag=flag))
    assert "\x1b[31mred" not in made, "paint of others"
    found = COMMANDS_A_TERMINAL.search(PAINT.sub("", made))
    assert not found, made[max(found.start() - 80, 0) : found.end() + 20]


@pytest.mark.parametrize("outlet", OUTLETS)
@pytest.mark.parametrize("number", [-(10**20), -1, 0, 10**20, 10**400])
def test_huge_numbers_are_shown(outlet: str, number: int) -> None:
    """A forged journal may hold any number that JSON allows."""
    assert OUTLETS[outlet](shown.Filling("x", number=number))


def test_the_command_to_merge_a_branch_is_quoted() -> None:
    """A person may copy it into a shell: the branch's name must do nothing there, nor in the terminal."""
    history = shown.history_of(shown.Filling(f"a;b{EVIL}", flag=False))
    history.run = ""
    merging = [line for line in whereabouts(history) if "git merge" in line]
    assert merging
    assert all("git merge 'a;b" in line and not COMMANDS_A_TERMINAL.search(line) for line in merging)


def test_line_ends_in_events_of_a_backlog_cannot_forge_a_line() -> None:
    lines = [*shown.work_lines(HARM), *shown.of_work(HARM).partition("</html>")[2].split("\n")]
    assert len(lines) > 10
    assert not [line for line in lines if line.lstrip().startswith("forged")]
