"""What does a line typed into the full screen mean? A goal, or a command that begins with a slash."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from ralph.errors import UserError
from ralph.run import options
from ralph.run.launch import agent_names

# The goal, the place, and how a run is shown are said elsewhere in here.
SAID_ELSEWHERE = (
    *("prompt", "prompt_file", "print", "spec", "directory", "preset"),
    *("json", "quiet", "verbose", "dry_run"),
)
LOOP_OPTIONS = options.without(options.RUN, *SAID_ELSEWHERE)
NUMBER = "`/ralph 5` caps the loop, `/ralph -1` leaves it open, `/ralph off` is a single shot"


class TypedCommand(Struct, frozen=True):
    """A line, understood. `goal` is the command of a line that is none. `text` is what follows the name, be it a word
    such as `default`; `number` is a cap or an iteration; `values` are options by name."""

    name: str
    text: str = ""
    number: int | None = None
    values: dict[str, Any] = {}


class Form(Struct, frozen=True):
    """How a command is written, what it does, and how what follows its name is read."""

    usage: str
    help: str
    read: Callable[[str, str], TypedCommand]


def understood(line: str) -> TypedCommand | None:
    """The command in a line; None for an empty one. A space in front of a slash makes it the beginning of a goal."""
    if not line.strip():
        return None
    if not line.startswith("/"):
        return TypedCommand("goal", line.strip())
    word, _, rest = line[1:].partition(" ")
    name = word.strip().lower()
    if name not in FORMS:
        import difflib

        near = difflib.get_close_matches(name, FORMS, 1)
        other = "/help lists them; a goal that begins with / needs a space in front"
        raise UserError(f"there is no command /{word}", f"did you mean /{near[0]}?" if near else other)
    return FORMS[name].read(name, rest.strip())


def completions(line: str) -> list[tuple[str, str]]:
    """What a line that begins with a slash may become, and what that would do."""
    word, space, rest = line[1:].partition(" ")
    if not line.startswith("/"):
        return []
    if not space:
        return [(f"/{name}", form.help) for name, form in FORMS.items() if name.startswith(word.lower())]
    known = _VALUES.get(word.lower(), lambda: ())()
    return [(f"/{word} {value}", "") for value in known if value.startswith(rest) and value != rest]


def completed(line: str, found: Sequence[tuple[str, str]]) -> str:
    """The line with as much as all of them have in common; a space behind it where it can be only one."""
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
}


def _either(*words: str) -> Callable[[str, str], TypedCommand]:
    """Reads one of these words, or none."""

    def read(name: str, text: str) -> TypedCommand:
        if text and text not in words:
            raise UserError(f"/{name} {text}: cannot understand {text!r}", FORMS[name].usage)
        return TypedCommand(name, text)

    return read


def _dollars(name: str, text: str) -> TypedCommand:
    if text in ("", "off"):
        return TypedCommand(name, text)
    try:
        sum_ = float(text.removeprefix("$"))
    except ValueError:
        sum_ = 0.0
    if not 0 < sum_ < 1e9:
        raise UserError(f"/{name} {text}: not a sum of dollars", FORMS[name].usage)
    return TypedCommand(name, text, values={"max_cost": sum_})


def _cap(name: str, text: str) -> TypedCommand:
    if text in ("", "default"):
        return TypedCommand(name, text)
    if text == "off":
        return TypedCommand(name, number=0)
    return TypedCommand(name, number=_integer(text, f"/{name} {text}: not a number", NUMBER))


def _iteration(name: str, text: str) -> TypedCommand:
    if not text:
        return TypedCommand(name)
    complaint = f"/{name} {text}: not the number of an iteration"
    number = _integer(text, complaint, "they count from 1")
    if number < 1:
        raise UserError(complaint, "they count from 1")
    return TypedCommand(name, number=number)


def _integer(text: str, complaint: str, hint: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(complaint, hint) from None


def _loop(name: str, text: str) -> TypedCommand:
    from ralph.hooks.starting import parse

    task, values = parse(text, LOOP_OPTIONS)
    if not task.strip():
        raise UserError(f"/{name} needs a task", FORMS[name].usage)
    if name == "ulw-loop":
        values["ultrawork"] = True
    return TypedCommand(name, task, values=values)


def _anything(name: str, text: str) -> TypedCommand:
    return TypedCommand(name, text)


def _something(name: str, text: str) -> TypedCommand:
    if not text:
        raise UserError(f"/{name} needs a text", FORMS[name].usage)
    return TypedCommand(name, text)


def _alone(name: str, text: str) -> TypedCommand:
    if text:
        raise UserError(f"/{name} stands alone", f"what is {text!r} meant to do?")
    return TypedCommand(name)


FORMS: dict[str, Form] = {
    "ralph": Form("/ralph [N|off|default]", "cap the loop of runs to come; alone: show the cap", _cap),
    "check": Form("/check [CMD|off]", "what must pass before a run is done; alone: list", _anything),
    "agent": Form("/agent [NAME|default]", "the agent of runs to come; alone: show it", _anything),
    "model": Form("/model [NAME|default]", "the model of runs to come; alone: show it", _anything),
    "worktree": Form("/worktree [on|off]", "runs to come work in a worktree of their own", _either("on", "off")),
    "max-cost": Form("/max-cost [USD|off]", "the most that each run to come may cost", _dollars),
    "ralph-loop": Form("/ralph-loop TASK [--OPTION …]", "loop in one session until its promise is kept", _loop),
    "ulw-loop": Form("/ulw-loop TASK [--OPTION …]", "the same, with ultrawork in every continuation", _loop),
    "cancel-ralph": Form("/cancel-ralph", "end the run at once", _alone),
    "tell": Form("/tell TEXT", "a word for the next prompt, or an answer", _something),
    "stop": Form("/stop [now]", "end the run after what it does now, or at once", _either("now")),
    "pause": Form("/pause", "hold the run before its next turn", _alone),
    "resume": Form("/resume", "go on with a run that is paused or unfinished", _alone),
    "diff": Form("/diff [N]", "what iteration N changed; alone: the whole run", _iteration),
    "help": Form("/help", "this page", _alone),
    "quit": Form("/quit", "leave; you are asked about runs started here", _alone),
}
