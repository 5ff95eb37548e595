"""Run checks, the commands that verify the work."""

import os
import re
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from ralph.core import events
from ralph.core.judgement import Cell, distrust
from ralph.core.model import Check
from ralph.core.prompts import ERROR_LIMIT
from ralph.core.runner_output import MAX_READ, read_tests
from ralph.core.text import listed, tail
from ralph.process.kept_process import Output
from ralph.process.program import Command
from ralph.settings import CheckCommand
from ralph.verdict.context import Context

SLUG_LENGTH = 50
CHANGED = (
    "protected files were changed while it ran, so it does not count: {}; if the check itself writes them, "
    "leave them out with --protect '!PATTERN'"
)


class Checks:
    """The check commands of a run. Later changes of the settings have no effect on them.

    `watch`, if given, is called when a check starts. It returns a function that names the protected files which have
    changed since then. `earlier`, if given, are the results of the run so far: exit code 0 then counts as failed if the
    tests say otherwise, except before the first turn (number 0).
    """

    def __init__(
        self,
        context: Context,
        commands: Sequence[CheckCommand],
        watch: Callable[[], Callable[[], tuple[str, ...]]] | None = None,
        earlier: Iterable[Cell] | None = None,
    ) -> None:
        self._context, self._commands, self._watch = context, tuple(commands), watch
        self._earlier = None if earlier is None else [check for cell in earlier for check in cell]
        self._slugs = slugs([context.redact.text(check.command) for check in commands])

    def run(self, number: int) -> tuple[Check, ...] | None:
        """Run all checks; return the results in their order, or None if the run was interrupted before the last."""
        context, results = self._context, list[Check]()
        folder = os.path.join(context.task or "", ".ralph")
        for check, slug in zip(self._commands, self._slugs, strict=True):
            if context.interrupt.level:
                return None
            result = self._run_one(check, os.path.join(folder, f"guardrail_{number:03d}_{slug}.log"), number)
            if result is None:
                return None
            if self._earlier is not None:
                result = self._distrust(result, self._earlier, is_first=number == 0)
            context.tell(check_finished(result))
            results.append(result)
            if context.settings.fail_fast and not result.passed:
                break
        if context.canary and context.canary.hear(results):
            return self.run(number)
        return tuple(results)

    def _distrust(self, result: Check, earlier: list[Check], is_first: bool) -> Check:
        """Return the result as failed if its tests contradict exit code 0, and remember it."""
        past = [check for check in earlier if check.name == result.name]
        earlier.append(replace(result, head="", tail=""))
        finding = None if is_first else distrust(result, past)
        return replace(result, passed=False, void=finding.text) if finding else result

    def _run_one(self, check: CheckCommand, log_path: str, number: int) -> Check | None:
        """Run one check; return None if it was interrupted."""
        context, timeout = self._context, self._context.settings.check_timeout or None
        command = Command(argv=("/bin/sh", "-c", check.command), cwd=str(context.root), env=context.child_env(number))
        context.restore_home()
        if context.sandboxes_checks:
            command = context.sandboxed(command)
        changed_files = self._watch() if self._watch else tuple
        context.tell(events.CheckStarted(check.command))
        with context.log(os.path.join(context.root, log_path)) as log:
            process = context.process(command, timeout=timeout)
            output = process.capture(head=context.settings.quoted, tail=MAX_READ, log=log, redact=context.redact)
        context.report_problems(log)
        changed = changed_files()
        if output.exit.ended_by == "interrupt":
            return None
        void = CHANGED.format(listed(changed, 5)) if changed else ""
        result = check_result(context.redact.text(check.command), output, timeout, check.hint)
        return replace(result, passed=result.passed and not void, action=check.fail_action, log=log_path, void=void)


def check_result(name: str, output: Output, timeout: float | None, hint: str) -> Check:
    """Return the result of a check that ran to its end or to its timeout."""
    ended = output.exit
    return Check(
        name=name,
        passed=ended.code == 0 and not ended.ended_by,
        # A program that SIGKILL ended has the exit code 137, as in a shell.
        exit_code=128 - ended.code if ended.code is not None and ended.code < 0 else ended.code,
        head=output.head,
        tail=tail(output.tail, ERROR_LIMIT),
        cut=output.cut,
        hint=hint,
        duration=ended.duration,
        timeout=timeout if ended.ended_by == "turn-timeout" else None,
        tests=read_tests(output.tail),
    )


def check_finished(check: Check) -> events.CheckFinished:
    return events.CheckFinished(
        name=check.name,
        passed=check.passed,
        exit_code=check.exit_code,
        duration_s=check.duration,
        log=check.log,
        output="" if check.passed else check.tail,
        action="" if check.passed else check.action,
        timeout=check.timeout,
        void=check.void,
    )


def slugs(commands: Sequence[str]) -> list[str]:
    """Return a name for the log of each command: letters and digits, short, and unique."""
    names: dict[str, None] = {}
    last_numbers: dict[str, int] = {}  # the last number of each name; there may be thousands of similar checks
    for command in commands:
        # `./mvnw clean install -T 2C` is `mvnw_clean_install_T_2C`
        name = re.sub("[^A-Za-z0-9]+", "_", command).strip("_")[:SLUG_LENGTH].rstrip("_") or "check"
        unique = name
        while unique in names:
            last_numbers[name] = last_numbers.get(name, 0) + 1
            unique = f"{name}_{last_numbers[name]}"
        names[unique] = None
    return list(names)
