"""Parse a line that a person types into an agent's prompt or into the TUI: `/ralph-loop TASK --max-iterations 5`.

No shell has parsed it, so a task may contain quotes, newlines and dashes. The task is the text before the options,
verbatim, without the one pair of quotes that may be around it.
"""

import re
import shlex
from collections.abc import Sequence
from itertools import islice

import click

from ralph.run.command_options import usage_error
from ralph.run.options import Option, OptionCommand, Values, parse

QUOTES = {'"': '"', "'": "'", "“": "”"}
MAX_CANDIDATES = 100  # places where the options might begin or end


def parse_prompt_line(text: str, options: Sequence[Option]) -> tuple[str, Values]:
    """Return the task and the values of the options before and after it; raise a UserError for a wrong option."""
    try:
        front, text = _take_leading_options(text.strip(), options)
        task, tail = _split_quoted_task(text) or _split_plain_task(text, options)
        return task, {**front, **parse(options, _split(tail))[0]}
    except click.UsageError as error:
        raise usage_error(error) from None


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an apostrophe, as in --completion-promise it's
        return text.split()


def _take_leading_options(text: str, options: Sequence[Option]) -> tuple[Values, str]:
    """Parse the options that the text begins with; return them and the rest."""
    values: Values = {}
    end = 0
    spaces = re.finditer(r"(?=\s|$)", text) if text.startswith("-") else iter(())
    for space in islice(spaces, MAX_CANDIDATES):
        try:
            found, words = parse(options, _split(text[: space.start()]))
        except click.BadOptionUsage:  # the value comes after the next space
            continue
        except click.NoSuchOption:
            break
        if words:
            break
        values, end = found, space.start()
    return values, text[end:].strip()


def _split_quoted_task(text: str) -> tuple[str, str] | None:
    """Return the task inside one pair of quotes, and the options after it; None if the quotes are part of the task."""
    close = QUOTES.get(text[:1])
    found = re.compile(rf"(?<!\\){re.escape(close)}").search(text, 1) if close else None
    if close is None or found is None:
        return None
    task, tail = text[1 : found.start()], text[found.end() :].strip()
    return (task.replace(f"\\{close}", close), tail) if not tail or tail.startswith("--") else None


def _split_plain_task(text: str, options: Sequence[Option]) -> tuple[str, str]:
    """Return the task and the options after it. The task ends where the rest of the line is nothing but options."""
    command = OptionCommand("ralph", options)
    for start in [match.start() for match in re.finditer(r"(?:^|(?<=\s))--", text)][-MAX_CANDIDATES:]:
        try:
            _, words, _ = command.make_parser(click.Context(command)).parse_args(_split(text[start:]))
        except click.UsageError:  # not one of these options: part of the task
            continue
        if not words:
            return text[:start].strip(), text[start:]
    return text, ""
