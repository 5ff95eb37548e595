"""How does each check of a plan stand today? Each is run once, as a run would run it: green, red, or not runnable."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.model import Check
from ralph.core.secrets import Redactor, secret_values
from ralph.processes.interrupt import Interrupt
from ralph.records.folder import RunFolder, new_run_id, prepare
from ralph.run.checks import Checks
from ralph.run.context import Context
from ralph.settings import Guardrail

if TYPE_CHECKING:
    from ralph.processes.keeper import Keeper
    from ralph.settings import Settings

NOT_RUNNABLE = (126, 127)  # what a shell says of a command that it cannot start
PATIENCE = 120.0

State = Literal["green", "red", "not runnable"]


class Trial(Struct, frozen=True):
    """One check as it is today. `said` is the last line that it printed."""

    command: str
    state: State
    ending: str = ""
    said: str = ""


class Trials:
    """Tries checks in a workspace, in the box if the settings want one."""

    def __init__(self, workspace: Path, settings: "Settings", keeper: "Keeper") -> None:
        self._settings = settings
        self._context = Context(
            root=workspace,
            folder=RunFolder(workspace / ".ralph", new_run_id(time.time())),
            keeper=keeper,
            interrupt=Interrupt(),
            tell=lambda *happened: None,
            env=dict(os.environ),
            redact=Redactor(secret_values(os.environ)),
            grace=settings.grace,
            began=time.monotonic(),
        )
        self._known: dict[str, Trial] = {}

    def of(self, commands: Sequence[str], interrupt: Interrupt) -> list[Trial]:
        """Each command's result; what has been tried is not tried again. KeyboardInterrupt if a person wants an end."""
        self._context.interrupt = interrupt
        fresh = [command for command in commands if command not in self._known]
        if fresh:
            prepare(self._context.root)
            for command, check in zip(fresh, self._run(fresh), strict=True):
                self._known[command] = _trial(command, check)
        return [self._known[command] for command in commands]

    def _run(self, commands: Sequence[str]) -> tuple[Check, ...]:
        context, settings = self._context, self._settings
        if settings.sandbox.enabled and settings.sandbox.checks and context.box is None:
            from ralph.run.belongings import enclose

            context.box = enclose(context, settings, (), str(context.root))
        patient = replace(
            settings, check_timeout=settings.check_timeout or PATIENCE, parallel_checks=1, fail_fast=False
        )
        results = Checks(context, [Guardrail(command) for command in commands], patient).run(0)
        if results is None:
            raise KeyboardInterrupt
        return results

    def close(self) -> None:
        if self._context.box:
            self._context.box.close()


def _trial(command: str, check: Check) -> Trial:
    said = next((line.strip() for line in reversed(check.tail.splitlines()) if line.strip()), "")
    state: State = "green" if check.passed else "not runnable" if check.exit_code in NOT_RUNNABLE else "red"
    return Trial(command, state, "" if check.passed else check.ending, said)
