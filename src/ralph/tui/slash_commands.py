"""Lines typed into the TUI: a goal, or a command that begins with a slash."""

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from ralph.errors import UserError
from ralph.run import options
from ralph.run.launch import agent_names
from ralph.run.prompt_line import parse_prompt_line

# The TUI has other ways to say these.
EXCLUDED_OPTIONS = (
    *("prompt", "prompt_file", "print", "spec", "directory", "preset"),
    *("json", "quiet", "verbose", "dry_run"),
)
LOOP_OPTIONS = options.without(options.RUN, *EXCLUDED_OPTIONS)
CAP_HINT = "`/ralph 5` caps the loop, `/ralph -1` leaves it open, `/ralph off` is a single shot"


class TypedCommand(Struct, frozen=True):
    """A parsed line. A line without a slash is the command `goal`.

    `text` follows the name; `number` is a cap or an iteration; `values` are options by name.
    """

    name: str
    text: str = ""
    number: int | None = None
    values: dict[str, Any] = {}


class SlashCommand(Struct, frozen=True):
    """How a command is written, what it does, and the function that parses its arguments."""

    usage: str
    help: str
    parse: Callable[[str, str], TypedCommand]


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
    return COMMANDS[name].parse(name, rest.strip())


def completions(line: str) -> list[tuple[str, str]]:
    """Return the possible completions of a line that begins with a slash, with their help."""
    word, space, rest = line[1:].partition(" ")
    if not line.startswith("/"):
        return []
    if not space:
        return [(f"/{name}", form.help) for name, form in COMMANDS.items() if name.startswith(word.lower())]
    known = _VALUES.get(word.lower(), lambda: ())()
    return [(f"/{word} {value}", "") for value in known if value.startswith(rest) and value != rest]


def complete(line: str, found: Sequence[tuple[str, str]]) -> str:
    """Extend the line by the prefix that all completions share; add a space if there is only one."""
    first, last = min(text for text, _ in found), max(text for text, _ in found)
    common = first[: next((at for at, char in enumerate(first) if last[at : at + 1] != char), len(first))]
    return f"{common} " if len(found) == 1 and " " not in common else max(common, line, key=len)


_VALUES: dict[str, Callable[[], Sequence[str]]] = {
    "agent": lambda: (*agent_names(), "default"),
    "ralph": lambda: ("off", "default"),
    "check": lambda: ("off",),
    "worktree": lambda: ("on", "off"),
    "model": lambda: ("default",),
    "max-cost": lambda: ("off",),
    "stop": lambda: ("now",),
    "sandbox": lambda: ("on", "off"),
    "yolo": lambda: ("on", "off"),
    "resume": lambda: ("yolo", "sandbox"),
    "dismiss": lambda: ("all",),
}


def _one_of(*words: str) -> Callable[[str, str], TypedCommand]:
    """Return a parser that accepts one of these words, or none."""

    def read(name: str, text: str) -> TypedCommand:
        if text and text not in words:
            raise UserError(f"/{name} {text}: expected {' or '.join(words)}", COMMANDS[name].usage)
        return TypedCommand(name, text)

    return read


def _dollars(name: str, text: str) -> TypedCommand:
    if text in ("", "off"):
        return TypedCommand(name, text)
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        amount = 0.0
    if not 0 < amount < 1e9:
        raise UserError(f"/{name} {text}: expected an amount in dollars", COMMANDS[name].usage)
    return TypedCommand(name, text, values={"max_cost": amount})


def _cap(name: str, text: str) -> TypedCommand:
    if text in ("", "default"):
        return TypedCommand(name, text)
    if text == "off":
        return TypedCommand(name, number=0)
    return TypedCommand(name, number=_integer(text, f"/{name} {text}: not a number", CAP_HINT))


def _iteration(name: str, text: str) -> TypedCommand:
    if not text:
        return TypedCommand(name)
    message = f"/{name} {text}: expected the number of an iteration"
    number = _integer(text, message, "the first one is 1")
    if number < 1:
        raise UserError(message, "the first one is 1")
    return TypedCommand(name, number=number)


def _integer(text: str, message: str, hint: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(message, hint) from None


def _loop(name: str, text: str) -> TypedCommand:

    task, values = parse_prompt_line(text, LOOP_OPTIONS)
    if not task.strip():
        raise UserError(f"/{name} needs a task", COMMANDS[name].usage)
    if name == "ulw-loop":
        values["ultrawork"] = True
    return TypedCommand(name, task, values=values)


def _any_text(name: str, text: str) -> TypedCommand:
    return TypedCommand(name, text)


def _required_text(name: str, text: str) -> TypedCommand:
    if not text:
        raise UserError(f"/{name} needs a text", COMMANDS[name].usage)
    return TypedCommand(name, text)


def _no_arguments(name: str, text: str) -> TypedCommand:
    if text:
        raise UserError(f"/{name} doesn't take arguments, got {text!r}", COMMANDS[name].usage)
    return TypedCommand(name)


COMMANDS: dict[str, SlashCommand] = {
    "ralph": SlashCommand("/ralph [N|off|default]", "cap the loop of later runs; alone: show the cap", _cap),
    "check": SlashCommand("/check [CMD|off]", "what must pass before a run is done; alone: list", _any_text),
    "agent": SlashCommand("/agent [NAME|default]", "the agent of later runs; alone: show it", _any_text),
    "model": SlashCommand("/model [NAME|default]", "the model of later runs; alone: show it", _any_text),
    "worktree": SlashCommand("/worktree [on|off]", "give later runs their own worktree", _one_of("on", "off")),
    "sandbox": SlashCommand("/sandbox [on|off]", "run later runs in a sandbox", _one_of("on", "off")),
    "yolo": SlashCommand("/yolo [on|off]", "allow the agents of later runs everything", _one_of("on", "off")),
    "max-cost": SlashCommand("/max-cost [USD|off]", "the most that each later run may cost", _dollars),
    "ralph-loop": SlashCommand("/ralph-loop TASK [--OPTION …]", "loop in one session until the promise", _loop),
    "ulw-loop": SlashCommand("/ulw-loop TASK [--OPTION …]", "the same, with ultrawork in every continuation", _loop),
    "cancel-ralph": SlashCommand("/cancel-ralph", "stop the run now", _no_arguments),
    "tell": SlashCommand("/tell TEXT", "a note for the next prompt, or an answer", _required_text),
    "stop": SlashCommand("/stop [now]", "stop the run after its turn, or now", _one_of("now")),
    "pause": SlashCommand("/pause", "pause the run before its next turn", _no_arguments),
    "resume": SlashCommand(
        "/resume [yolo|sandbox]", "resume a run that is paused or unfinished", _one_of("yolo", "sandbox")
    ),
    "accept": SlashCommand("/accept", "check the run's branch once more and merge it", _no_arguments),
    "discard": SlashCommand("/discard", "throw the run's branch away", _no_arguments),
    "retry": SlashCommand("/retry TASK [NOTE]", "retry a parked task of the backlog", _required_text),
    "dismiss": SlashCommand("/dismiss [all]", "the run, or every ended one, needs you no more", _one_of("all")),
    "diff": SlashCommand("/diff [N]", "what iteration N changed; alone: the whole run", _iteration),
    "help": SlashCommand("/help", "this page", _no_arguments),
    "quit": SlashCommand("/quit", "quit; asks about runs started here", _no_arguments),
}
