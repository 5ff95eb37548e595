"""Which commands are there? One row for each, and one type for all: a new command is a function of its name, below
`@command`, in the file of its name, or in one that `FILES` names, and a line here. From that come the quick parser, the
help, shell completion and the reference."""

from __future__ import annotations

import sys

from ralph.errors import UserError
from ralph.run.options import Option

# Read before the keeper is forked: nothing is imported here that its copy need not hold.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from typing import Any

    Values = dict[str, Any]
    Answer = Callable[[Values, list[str]], int]
else:
    Values = dict


class CliCommand:
    """A command. `answer` gets the options that were given, by name, and the other words, and gives the exit code;
    `words` says in the help what those are; `commands` are commands of a command, which then answers nothing."""

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002 (what everybody calls it)
        answer: Answer | None = None,
        options: tuple[Option, ...] = (),
        *,
        words: str = "",
        examples: tuple[str, ...] = (),
        commands: tuple[CliCommand, ...] = (),
    ) -> None:
        self.name, self.help, self.answer, self.options = name, help, answer, options
        self.words, self.examples, self.commands = words, examples, commands


def command(*options: Option, words: str = "", examples: tuple[str, ...] = ()) -> Callable[[Answer], CliCommand]:
    """Makes a command of the function below: it bears its name, and what the function says of itself is the help."""

    def made(answer: Answer) -> CliCommand:
        return CliCommand(answer.__name__, answer.__doc__ or "", answer, options, words=words, examples=examples)

    return made


DIRECTORY = Option("-C --directory DIR", "The workspace (default: the current folder).")
DB = Option("--db URL", "Of the fleet at this database: postgresql://HOST/NAME (empty: $RALPH_DB).")
JSON = Option("--json", "For programs: an object a line.")

SECTIONS = {
    "Begin": {
        "demo": "watch a run on a small example, with a scripted agent",
        "doctor": "say what is missing here, and what to do about it",
        "init": "write the project's settings, by questions",
    },
    "Run an agent": {
        "run": "loop an agent on a goal",
        "loop": "fresh context until every check passes",
        "plan": "make a plan of a wish: tasks, and checks that verify them",
        "work": "work off a backlog: many loops behind a merge gate",
        "worker": "lend a hand with the backlogs of many machines",
        "resume": "go on with a run that was paused, stopped, killed or exhausted",
        "ui": "watch, steer and start runs in a full screen",
    },
    "Watch and steer, from any terminal": {
        "ps": "the runs on this machine: what they do, and want of you",
        "show": "what a run did, iteration by iteration",
        "logs": "what a run said and did, as it was on the screen",
        "tell": "say a word to a run, or answer what its agent asks",
        "pause": "hold a run before its next turn",
        "stop": "end a run, after its current turn or now",
        "serve": "a page to see and steer all runs, also from a phone",
    },
    "The morning after": {
        "report": "a page that says what a run did and what needs you",
        "diff": "show what a run changed, or one iteration of it",
        "accept": "check the work of a run once more, merge it, tidy up",
        "discard": "throw the work of a run away",
        "clean": "take away what is left of old runs",
        "learn": "what earlier runs learned here, for later ones",
        "rewind": "make the files what they were after an earlier iteration",
        "trust": "accept settings that were changed while a run was at work",
    },
    "Inside the agent": {
        "hook": "keep an agent in its session until its promise is kept",
        "ask": "ask the person who started the run",
    },
    "Root agents and their children": {
        "task": "supervise a root agent until its DONE file is there",
        "tasks": "how the tasks of a root stand",
        "job": "run an agent once, as a child of a supervised one",
        "bus": "post to a message bus, read it, follow it",
    },
    "For programs and shells": {
        "schema": "print the JSON Schema of events or settings",
        "completion": "print the completion script for your shell",
    },
}
SUMMARIES = {name: summary for section in SECTIONS.values() for name, summary in section.items()}


FILES = {
    "loop": "run",
    **dict.fromkeys(("ps", "show", "logs"), "watch"),
    **dict.fromkeys(("tell", "pause", "stop", "ask"), "steer"),
    **dict.fromkeys(("report", "diff", "accept", "discard", "rewind", "clean", "learn", "trust"), "results"),
    **dict.fromkeys(("demo", "schema"), "init"),
    "serve": "ui",
    **dict.fromkeys(("job", "tasks", "bus"), "task"),
    "completion": "help",
}
"""Where a command stands that shares a file with its like."""


def find(name: str) -> CliCommand:
    module = __import__(f"ralph.cli.{FILES.get(name, name)}", fromlist=[""])
    found: CliCommand = getattr(module, name)
    return found


def folder_of(values: Values) -> Path:
    """The folder that is named with -C, or the current one."""
    from pathlib import Path

    folder = Path(values.get("directory", "."))
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}", "name a workspace with -C DIR")
    return folder.resolve()


def no_words(words: list[str], instead: str) -> None:
    """For commands that take none."""
    if words:
        raise UserError(f"too many words: {words[0]!r}", instead)


def print_objects(objects: Iterable[object]) -> int:
    """For programs: an object a line."""
    from msgspec.json import encode

    from ralph.core.text import escaped

    sys.stdout.buffer.write(escaped(b"".join(encode(one) + b"\n" for one in objects)))
    return 0
