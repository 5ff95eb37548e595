"""How do the tasks of a root stand? `ralph tasks` shows each in a line: state, attempt, age and last message."""

import os
import time

import click
import msgspec

from ralph.cli.commands import simple
from ralph.core.text import clean
from ralph.show.words import cut, duration, width
from ralph.supervise.task_folder import around
from ralph.supervise.task_list import TaskRow, every

TITLES = ("project", "task", "state", "attempt", "age", "last message")


def command() -> click.Command:
    root = click.Option(
        ["--root"], metavar="DIR", help="The folder of all projects (default: that of the task around)."
    )
    project = click.Option(["--project"], metavar="NAME", help="Only this project.")
    json = click.Option(["--json"], is_flag=True, help="One JSON object a line.")
    return simple("tasks", tasks, root, project, json, help="Show how the tasks of a root stand.")


def tasks(root: str | None, project: str | None, json: bool) -> int:
    here = around(os.environ)
    rows = every(root or (here[0].root if here else "."), time.time(), project)
    if json:
        for row in rows:
            click.echo(msgspec.json.encode(row))
    elif rows:
        click.echo("\n".join(table(rows)))
    else:
        click.echo("No tasks here. --root DIR names the folder of the projects.", err=True)
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
