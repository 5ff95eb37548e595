"""Lines typed into the TUI: a goal, or a command that begins with a slash."""

import difflib
import os
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from ralph.actions.launch import agent_names
from ralph.errors import UserError
from ralph.options import command_options
from ralph.options.command_options import parse_prompt_line
from ralph.options.option import without

# The TUI has other ways to say these.
EXCLUDED_OPTIONS = (
    *("prompt", "prompt_file", "print", "spec", "directory", "preset"),
    *("json", "quiet", "verbose", "dry_run"),
)
LOOP_OPTIONS = without(command_options.RUN, *EXCLUDED_OPTIONS)
CAP_HINT = "`/ralph 5` caps the loop, `/ralph -1` leaves it open, `/ralph off` is a single shot"


class TypedCommand(Struct, frozen=True):
    """A parsed line. A line without a slash is the command `goal`.

    `text` follows the name; `number` is a cap or an iteration; `values` are options of `ralph run` by name.
    """

    name: str
    text: str = ""
    number: int | None = None
    values: dict[str, Any] = {}


Argument = Literal["nothing", "a word", "text", "needed text", "cap", "iteration", "loop"]


class SlashCommand(Struct, frozen=True):
    """One command: `usage` and `help` for the menu, what it takes, and the words that tab completes."""

    usage: str
    help: str
    takes: Argument = "nothing"
    words: tuple[str, ...] = ()


COMMANDS: dict[str, SlashCommand] = {
    "ralph": SlashCommand(
        "/ralph [N|off|default]", "cap the loop of later runs; alone: show the cap", "cap", ("off", "default")
    ),
    "check": SlashCommand("/check [CMD|off]", "what must pass before a run is done; alone: list", "text", ("off",)),
    "agent": SlashCommand(
        "/agent [NAME|default]", "the agent of later runs; alone: show it", "text", (*agent_names(), "default")
    ),
    "ralph-loop": SlashCommand("/ralph-loop TASK [--OPTION …]", "loop in one session until the promise", "loop"),
    "ulw-loop": SlashCommand("/ulw-loop TASK [--OPTION …]", "the same, with ultrawork in every continuation", "loop"),
    "cancel-ralph": SlashCommand("/cancel-ralph", "stop the run now"),
    "tell": SlashCommand("/tell TEXT", "a note for the next prompt, or an answer", "needed text"),
    "stop": SlashCommand("/stop [now]", "stop the run after its turn, or now", "a word", ("now",)),
    "pause": SlashCommand("/pause", "pause the run before its next turn"),
    "resume": SlashCommand(
        "/resume [yolo|sandbox]", "resume a run that is paused or unfinished", "a word", ("yolo", "sandbox")
    ),
    "accept": SlashCommand("/accept", "check the run's branch once more and merge it"),
    "discard": SlashCommand("/discard", "throw the run's branch away"),
    "retry": SlashCommand("/retry TASK [NOTE]", "retry a parked task of the backlog", "needed text"),
    "dismiss": SlashCommand("/dismiss [all]", "the run, or every ended one, needs you no more", "a word", ("all",)),
    "diff": SlashCommand("/diff [N]", "what iteration N changed; alone: the whole run", "iteration"),
    "help": SlashCommand("/help", "this page"),
    "quit": SlashCommand("/quit", "quit; asks about runs started here"),
}


def parse_line(line: str) -> TypedCommand | None:
    """Parse a line; None if it is empty. A space before a slash makes it a goal."""
    if not line.strip():
        return None
    if not line.startswith("/"):
        return TypedCommand("goal", line.strip())
    word, _, rest = line[1:].partition(" ")
    name = word.strip().lower()
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        other = "/help lists them; a goal that begins with / needs a space in front"
        raise UserError(f"unknown command /{word}", f"did you mean /{near[0]}?" if near else other)
    return _parse_argument(name, COMMANDS[name], rest.strip())


def _parse_argument(name: str, form: SlashCommand, text: str) -> TypedCommand:
    is_known = not text or text in form.words
    match form.takes:
        case "nothing" if text:
            raise UserError(f"/{name} doesn't take arguments, got {text!r}", form.usage)
        case "needed text" if not text:
            raise UserError(f"/{name} needs a text", form.usage)
        case "a word" if not is_known:
            raise UserError(f"/{name} {text}: expected {' or '.join(form.words)}", form.usage)
        case "cap" if text == "off":
            return TypedCommand(name, number=0)
        case "cap" if not is_known:
            return TypedCommand(name, number=_parse_integer(text, f"/{name} {text}: not a number", CAP_HINT))
        case "iteration" if text:
            message, hint = f"/{name} {text}: expected the number of an iteration", "the first one is 1"
            number = _parse_integer(text, message, hint)
            if number < 1:
                raise UserError(message, hint)
            return TypedCommand(name, number=number)
        case "loop":
            task, values = parse_prompt_line(text, LOOP_OPTIONS)
            if not task.strip():
                raise UserError(f"/{name} needs a task", form.usage)
            return TypedCommand(name, task, values=values | ({"ultrawork": True} if name == "ulw-loop" else {}))
    return TypedCommand(name, text)


def _parse_integer(text: str, message: str, hint: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(message, hint) from None


def completions(line: str) -> list[tuple[str, str]]:
    """Return the possible completions of a line that begins with a slash, with their help."""
    word, space, rest = line[1:].partition(" ")
    if not line.startswith("/"):
        return []
    if not space:
        return [(f"/{name}", form.help) for name, form in COMMANDS.items() if name.startswith(word.lower())]
    words = COMMANDS[word.lower()].words if word.lower() in COMMANDS else ()
    return [(f"/{word} {value}", "") for value in words if value.startswith(rest) and value != rest]


def complete(line: str, candidates: Sequence[tuple[str, str]]) -> str:
    """Extend the line by the prefix that all completions share; add a space if there is only one."""
    common = os.path.commonprefix([text for text, _ in candidates])  # noqa: RUF071 - of characters, as meant
    return f"{common} " if len(candidates) == 1 and " " not in common else max(common, line, key=len)
