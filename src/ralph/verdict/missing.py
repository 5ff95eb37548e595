"""Explain why a check cannot start in a copy: its dependencies are not there."""

import os
import re
from collections.abc import Iterable

from ralph.core.model import Check
from ralph.core.rules import UNSTARTABLE, startup_problem
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.settings.setup_commands import installations, setup_options
from ralph.verdict.context import Context

_NO_MODULE = re.compile(r"No module named |Cannot find (?:module|package) |Failed to resolve import ")


def missing_dependencies(context: Context, checks: Iterable[Check]) -> UserError | None:
    """Return the error of the first check that cannot start because the copy lacks a folder that setup would make."""
    for check in checks:
        if check.exit_code in UNSTARTABLE and not check.timeout and (folder := _missing_folder(context, check)):
            text = f"cannot start in a copy: {folder} is not in it (git ignores it)"
            return UserError(f'the check "{one_line(check.name)}" {text}', _hint(context, check))
    return None


def startup_advice(context: Context, check: Check) -> str:
    """Return why a check cannot start, and what to do; empty if it started."""
    if error := missing_dependencies(context, (check,)):
        return error.advice
    problem = startup_problem((check,))
    return f"{problem[0]}; fix --check" if problem else ""


def missing_module(context: Context, checks: Iterable[Check]) -> str:
    """Return a notice about the first check that lacks a module in a copy without its dependencies; empty if none."""
    for check in checks:
        lines = (line.strip() for line in f"{check.head}\n{check.tail}".splitlines() if _NO_MODULE.search(line))
        if not check.passed and (line := next(lines, "")) and (folder := _missing_folder(context, check)):
            reason = f"{one_line(line, 120)}: {folder} is not in the copy (git ignores it)"
            return f'the check "{one_line(check.name)}" fails: {reason}; {_hint(context, check)}'
    return ""


def _missing_folder(context: Context, check: Check) -> str:
    """Return the dependency folder that a check in a copy doesn't find; empty if the run is in the user's tree."""
    if os.path.realpath(context.root) == os.path.realpath(context.workspace):
        return ""
    is_in_place = context.namespace is not None and context.namespace.is_in_use
    roots = (context.root, context.workspace) if is_in_place else (context.root,)
    folders = (row.folder for row in installations(str(context.root)))
    return next((folder for folder in folders if not any(_is_filled(f"{root}/{folder}") for root in roots)), "")


def _is_filled(folder: str) -> bool:
    return os.path.isdir(folder) and bool(os.listdir(folder))


def _hint(context: Context, check: Check) -> str:
    return setup_options(str(context.root), (check.name,))
