"""How do the tasks of a root stand? `ralph tasks` shows each in a line: state, attempt, age and last message."""

import os
import sys
import time

import msgspec

from ralph.cli.table import JSON, CliCommand, Values, no_words
from ralph.core.text import clean, escaped
from ralph.run.options import Option
from ralph.show.words import cut, duration, width
from ralph.supervise.task_folder import around
from ralph.supervise.task_list import TaskRow, every

TITLES = ("project", "task", "state", "attempt", "age", "last message")


def tasks(values: Values, words: list[str]) -> int:
    no_words(words, "name a project with --project")
    here = around(os.environ)
    rows = every(values.get("root") or (here[0].root if here else "."), time.time(), values.get("project"))
    if values.get("json"):
        for row in rows:
            print(escaped(msgspec.json.encode(row)).decode())
    elif rows:
        print("\n".join(table(rows)))
    else:
        print("No tasks here. --root DIR names the folder of the projects.", file=sys.stderr)
    return 0


def table(rows: list[TaskRow]) -> list[str]:
    """Columns as wide as they need to be; the message takes what is left of its 80 characters."""
    cells = [TITLES, *(_cells(row) for row in rows)]
    sizes = [max(width(line[at]) for line in cells) for at in range(len(TITLES))]
    return ["  ".join(_padded(cell, size) for cell, size in zip(line, sizes, strict=True)).rstrip() for line in cells]


def _cells(row: TaskRow) -> tuple[str, ...]:
    attempt = str(row.attempt) if row.attempt else "-"
    return row.project, row.task, row.state, attempt, duration(row.age), cut(clean(row.last_message), 80, "…")


def _padded(text: str, size: int) -> str:
    return text + " " * (size - width(text))


COMMAND = CliCommand(
    "tasks",
    "Show how the tasks of a root stand.",
    tasks,
    (
        Option(("--root",), "The folder of all projects (default: that of the task around).", "Options", metavar="DIR"),
        Option(("--project",), "Only this project.", "Options", metavar="NAME"),
        JSON,
    ),
)
