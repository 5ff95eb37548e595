"""Does the work pass? Runs the commands that verify it, all of them, each in its own process group."""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from msgspec import Struct

from ralph.core import events
from ralph.core.model import Check, FailAction
from ralph.core.prompts import ERROR_LIMIT
from ralph.processes.courses import Course, side_by_side
from ralph.processes.keeper import Keeper
from ralph.processes.process import output_of
from ralph.processes.program import Command
from ralph.run.context import Context

SLUG_LENGTH = 50


class Guard(Struct, frozen=True):
    """One command, as it was when the run started: what the agent does to the settings changes nothing."""

    command: str
    hint: str = ""
    action: FailAction = "APPEND"


class CheckManner(Struct, frozen=True, kw_only=True):
    """How checks are run: the longest that one may take, how much of its output a prompt quotes, how many run at once,
    and whether a red one is enough."""

    timeout: float | None = None
    truncate: int = 5000
    parallel: int = 1
    fail_fast: bool = False


class Checks:
    def __init__(self, context: Context, guards: Sequence[Guard], manner: CheckManner) -> None:
        self._context, self._guards, self._manner = context, tuple(guards), manner
        self._timeout = manner.timeout or None
        self._slugs = slugs([context.redact.text(guard.command) for guard in guards])

    def run(self, number: int) -> tuple[Check, ...] | None:
        """The results in the order of the checks, or None if a person asked to stop before all were in."""
        begins = [
            partial(self._course, guard, os.path.join(self._folder, f"guardrail_{number:03d}_{slug}.log"), number)
            for guard, slug in zip(self._guards, self._slugs, strict=True)
        ]
        results: list[Check] = []
        with ExitStack() as stack:
            others = [stack.enter_context(self._context.keeper.another()) for _ in begins[1 : self._at_once]]
            for check in side_by_side(begins, (self._context.keeper, *others), self._is_enough):
                if check is None:
                    return None
                self._context.tell(_finished(check))
                results.append(check)
        return tuple(results)

    @property
    def _folder(self) -> str:
        return os.path.join(self._context.task or "", ".ralph")

    @property
    def _at_once(self) -> int:
        """What one in a box plants is looked for when it has ended: no other may be at work then."""
        return 1 if self._context.box and self._context.boxes_checks else self._manner.parallel

    def _is_enough(self, check: Check | None) -> bool:
        return check is None or (self._manner.fail_fast and not check.passed)

    def _course(self, guard: Guard, log: str, number: int, keeper: Keeper) -> Course[Check | None]:
        context = self._context
        if context.interrupt.level:
            return None
        shell = ("cmd", "/c") if sys.platform == "win32" else ("sh", "-c")
        command = Command(argv=(*shell, guard.command), cwd=str(context.root), env=context.marked(number))
        context.settle_in()
        if context.boxes_checks:
            command = context.boxed(command)
        with context.log(os.path.join(context.root, log)) as file:
            output = yield from output_of(
                keeper,
                command,
                head=self._manner.truncate,
                tail=ERROR_LIMIT,
                meanwhile=lambda: context.tell(events.CheckStarted(guard.command)),
                limits=context.limits(self._timeout),
                interrupt=context.interrupt,
                log=file,
                redact=context.redact,
                tick=context.tick,
                keep_children=context.keep_children,
            )
        context.tell_troubles(file, keeper=keeper)
        ended = output.exit
        if ended.ended_by == "interrupt":
            return None
        return Check(
            name=context.redact.text(guard.command),  # a key in it is for the shell alone
            passed=ended.code == 0 and not ended.ended_by,
            exit_code=_as_in_a_shell(ended.code),
            head=output.head,
            tail=output.tail,
            cut=output.cut,
            hint=guard.hint,
            action=guard.action,
            log=log,
            duration=ended.duration,
            timeout=self._timeout if ended.ended_by == "turn-timeout" else None,
        )


def _as_in_a_shell(code: int | None) -> int | None:
    """Who is ended by signal 9 has the exit code 137, as everybody knows it."""
    return 128 - code if code is not None and code < 0 else code


def _finished(check: Check) -> events.CheckFinished:
    shown = "" if check.passed else check.tail
    return events.CheckFinished(
        name=check.name,
        passed=check.passed,
        exit_code=check.exit_code,
        duration_s=check.duration,
        log=check.log,
        output=shown,
        action="" if check.passed else check.action,
        timeout=check.timeout,
    )


def slugs(commands: Sequence[str]) -> list[str]:
    """A name for each command's log: letters and digits, short, and no two alike."""
    names: list[str] = []
    for command in commands:
        name = "".join(char if char.isascii() and char.isalnum() else "_" for char in command)
        name = _squeezed(name).strip("_")[:SLUG_LENGTH].strip("_") or "check"
        again = (f"{name}_{count}" for count in range(1, len(commands)))
        names.append(name if name not in names else next(other for other in again if other not in names))
    return names


def _squeezed(name: str) -> str:
    """Without runs of underscores: `./mvnw clean install -T 2C` is `mvnw_clean_install_T_2C`."""
    while "__" in name:
        name = name.replace("__", "_")
    return name
