import re
from pathlib import Path
from typing import Any

import pytest

from ralph.errors import UserError
from ralph.tui.slash_commands import COMMANDS, TypedCommand, parse_line

UNDERSTOOD: dict[str, TypedCommand | None] = {
    "": None,
    "   ": None,
    "Make the tests pass": TypedCommand("goal", "Make the tests pass"),
    "  /etc/hosts is wrong ": TypedCommand("goal", "/etc/hosts is wrong"),
    "fix a/b and --this": TypedCommand("goal", "fix a/b and --this"),
    "/ralph": TypedCommand("ralph"),
    "/ralph 5": TypedCommand("ralph", number=5),
    "/ralph  5 ": TypedCommand("ralph", number=5),
    "/RALPH 5": TypedCommand("ralph", number=5),
    "/ralph 0": TypedCommand("ralph", number=0),
    "/ralph off": TypedCommand("ralph", number=0),
    "/ralph -1": TypedCommand("ralph", number=-1),
    "/ralph default": TypedCommand("ralph", "default"),
    "/check": TypedCommand("check"),
    "/check pytest -q 'a b'": TypedCommand("check", "pytest -q 'a b'"),
    "/check off": TypedCommand("check", "off"),
    "/agent codex": TypedCommand("agent", "codex"),
    "/agent my-agent --flag {prompt}": TypedCommand("agent", "my-agent --flag {prompt}"),
    '/ralph-loop "Fix it"': TypedCommand("ralph-loop", "Fix it"),
    "/ralph-loop Fix it": TypedCommand("ralph-loop", "Fix it"),
    '/ralph-loop "Fix it" --max-iterations 5 --completion-promise OK': TypedCommand(
        "ralph-loop", "Fix it", values={"maximum_iterations": 5, "completion_promise": "OK"}
    ),
    '/ulw-loop "Fix it" --check "make test"': TypedCommand(
        "ulw-loop", "Fix it", values={"check": ["make test"], "ultrawork": True}
    ),
    "/cancel-ralph": TypedCommand("cancel-ralph"),
    "/tell use port 8080": TypedCommand("tell", "use port 8080"),
    "/stop": TypedCommand("stop"),
    "/stop now": TypedCommand("stop", "now"),
    "/pause": TypedCommand("pause"),
    "/resume": TypedCommand("resume"),
    "/diff": TypedCommand("diff"),
    "/diff 3": TypedCommand("diff", number=3),
    "/help": TypedCommand("help"),
    "/quit": TypedCommand("quit"),
}


@pytest.mark.parametrize(("line", "command"), UNDERSTOOD.items(), ids=repr)
def test_a_line_is_a_goal_or_a_command(line: str, command: TypedCommand | None) -> None:
    assert parse_line(line) == command


A_GOAL = "/help lists them; a goal that begins with / needs a space in front"
A_CAP = "`/ralph 5` caps the loop, `/ralph -1` leaves it open, `/ralph off` is a single shot"
OPTIONS = "`ralph run -h` lists the options"
REFUSED: dict[str, str] = {
    "/ralf 5": "unknown command /ralf (did you mean /ralph?)",
    "/": f"unknown command / ({A_GOAL})",
    "/etc/hosts is wrong": f"unknown command /etc/hosts ({A_GOAL})",
    "/ralph five": f"/ralph five: not a number ({A_CAP})",
    "/ralph 5 6": f"/ralph 5 6: not a number ({A_CAP})",
    "/ralph-loop": "/ralph-loop needs a task (/ralph-loop TASK [--OPTION …])",
    '/ralph-loop "  "': "/ralph-loop needs a task (/ralph-loop TASK [--OPTION …])",
    '/ulw-loop "Fix it" --max-iterations many': f"--max-iterations: expected a whole number, got 'many' ({OPTIONS})",
    "/tell": "/tell needs a text (/tell TEXT)",
    "/stop it": "/stop it: expected now (/stop [now])",
    "/pause please": "/pause doesn't take arguments, got 'please' (/pause)",
    "/diff two": "/diff two: expected the number of an iteration (the first one is 1)",
    "/diff 0": "/diff 0: expected the number of an iteration (the first one is 1)",
}


@pytest.mark.parametrize(("line", "complaint"), REFUSED.items(), ids=repr)
def test_an_invalid_line_is_refused_with_one_message_and_a_hint(line: str, complaint: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_line(line)
    assert refused.value.advice == complaint


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_usage_and_a_help_text(name: str) -> None:
    form: Any = COMMANDS[name]
    assert form.usage.split()[0] == f"/{name}"
    assert form.help


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "ui.md"


def test_the_guide_lists_exactly_the_commands_that_exist() -> None:
    named = set(re.findall(r"`/([a-z-]+)", GUIDE.read_text()))
    assert named == set(COMMANDS)


def test_the_picture_loads_nothing_from_other_files_or_sites() -> None:
    picture = GUIDE.with_suffix(".svg").read_text()
    assert "url(http" not in picture
    assert re.findall(r"https?://[^\s\"<]+", picture) == ["http://www.w3.org/2000/svg"]
