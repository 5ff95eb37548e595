"""`ralph init` tries the checks in a copy of the last commit, to find out whether copies need a setup."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from ralph.core.model import Check
from ralph.errors import UserError
from ralph.git.client import find_git
from ralph.planning.plans import try_checks
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.settings import CheckCommand, Settings
from ralph.settings.setup_commands import setup_command, setup_hint
from ralph.store.folder import RunFolder
from ralph.verdict.checks import Checks
from ralph.verdict.context import Context
from ralph.verdict.copies import open_copy

MAX_UNASKED = 30.0  # seconds: what a check may take if nobody was asked


def has_commit(workspace: Path) -> bool:
    """Return whether there is a commit to copy."""
    repository = find_git(workspace)
    return repository is not None and bool(repository.resolve("HEAD"))


def find_setup(workspace: Path, commands: Sequence[str], limit: float | None, say: Callable[[str], object]) -> str:
    """Return the setup that the checks need in a copy; empty if they need none, or if that isn't known.

    Run the checks in the tree and in a copy. If they fail only in the copy, run them in another one with the setup of
    the project's lock file. Report the result. `limit`: the most seconds for each check.
    """
    settings = Settings(checks=tuple(map(CheckCommand, commands)), check_timeout=limit or 0.0)
    with Keeper.start() as keeper, Interrupt() as interrupt:
        if any(trial.state != "green" for trial in try_checks(commands, workspace, settings, keeper, interrupt)):
            say("Not tried in a copy: the checks do not all pass here yet.")
            return ""
        setup = setup_command(str(workspace))
        try:
            red = _run_in_copy(workspace, settings, keeper, interrupt)
            if not red:
                say("The checks pass in a copy of your last commit as well.")
                return ""
            if setup and not _run_in_copy(workspace, replace(settings, setup=setup), keeper, interrupt):
                say(f"In a copy of your last commit the checks need a setup: {setup}")
                return setup
        except UserError as error:
            say(f"{error.message}\nhint: {error.hint}" if error.hint else error.message)
            return ""
    say(f"{red[0].name} fails in a copy of your last commit ({red[0].ending}); {setup_hint(str(workspace), commands)}")
    return ""


def _run_in_copy(workspace: Path, settings: Settings, keeper: Keeper, interrupt: Interrupt) -> list[Check]:
    """Return the checks that fail in a copy. Raise a UserError if they don't test it."""
    with tempfile.TemporaryDirectory() as folder:
        context = Context(
            root=workspace,
            workspace=str(workspace),
            settings=settings,
            folder=RunFolder(Path(folder), f"init-{os.getpid()}"),
            keeper=keeper,
            deadline=Deadline(interrupt),
        )
        repository = find_git(workspace, context.deadline)
        assert repository is not None
        with open_copy(context, repository, repository.resolve("HEAD")) as copy:
            checks = Checks(copy.context, settings.checks).run(0)
    if checks is None:
        raise KeyboardInterrupt
    return [check for check in checks if not check.passed]
