"""Run checks, the commands that verify the work, and exams, the checks that the agent doesn't see. Notice changes to
the files that checks are made of."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from ralph.core import events
from ralph.core.judgement import Cell, distrust
from ralph.core.model import Check, Exam
from ralph.core.prompts import ERROR_LIMIT
from ralph.core.runner_output import MAX_READ, read_tests
from ralph.core.text import listed, one_line, tail
from ralph.errors import UserError
from ralph.files import read_given
from ralph.git.client import Git
from ralph.process.kept_process import Output
from ralph.process.program import CannotStart, Command
from ralph.sandbox.discovery import resolve_paths
from ralph.sandbox.mounts import is_inside
from ralph.sandbox.sandbox import without_network
from ralph.settings import CheckCommand, Settings
from ralph.settings.schema import ExamCommand
from ralph.store.folder import ExamOutput, add_exam_output, exam_folder, read_exam_outputs
from ralph.verdict.context import Context
from ralph.verdict.copies import open_copy, temporary_exam_folder
from ralph.verdict.exam_commands import ExamProgram, find_exams, hidden_paths

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
        made = check_result(context.redact.text(check.command), output, timeout, check.hint)
        return replace(made, passed=made.passed and not void, action=check.fail_action, log=log_path, void=void)


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


# Files that tell agents and other tools which programs to run, even when the user starts them later.
TOOL_SETTINGS = (
    *(".claude/settings.json", ".claude/settings.local.json", ".mcp.json", ".codex/config.toml", ".codex/hooks.json"),
    *("opencode.json", "opencode.jsonc", ".gemini/settings.json", ".qwen/settings.json", ".amp/settings.json"),
    *(".cursor/hooks.json", ".cursor/mcp.json", ".envrc", ".vscode/tasks.json", ".devcontainer/devcontainer.json"),
)

Content = tuple[int, int]
"""The size and hash of a file."""


class WatchedFiles:
    """Files of the workspace whose changes are reported, once each."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._groups: list[tuple[str, dict[str, Content | None]]] = []

    def remember(self, paths: Iterable[str], message: str) -> None:
        """Watch these files. In the message, `{names}` stands for those that changed, and `{first}` for one of them."""
        self._groups.append((message, {path: self._read(path) for path in paths}))

    def take_changes(self) -> Iterator[str]:
        """Yield a message for each group with files that changed, and forget those."""
        for message, files in self._groups:
            if changed := [path for path, before in files.items() if self._read(path) != before]:
                yield message.format(names=listed(changed, 5), first=changed[0])
            for path in changed:
                del files[path]

    def _read(self, path: str) -> Content | None:
        try:
            content = read_given(os.path.join(self._root, path))
        except FileNotFoundError:
            return None
        except OSError:  # a folder, or unreadable
            return -1, 0
        return len(content), hash(content)


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
    seen: dict[str, int] = {}  # the last number of each name; there may be thousands of similar checks
    for command in commands:
        # `./mvnw clean install -T 2C` is `mvnw_clean_install_T_2C`
        name = re.sub("[^A-Za-z0-9]+", "_", command).strip("_")[:SLUG_LENGTH].rstrip("_") or "check"
        unique = name
        while unique in names:
            seen[name] = seen.get(name, 0) + 1
            unique = f"{name}_{seen[name]}"
        names[unique] = None
    return list(names)


class Exams:
    """The exams of a run, as they were when it started: checks that the agent doesn't see, on a throwaway copy of a
    checkpoint.

    The agent learns only whether it passed. ralph keeps what an exam printed in its state folder, under `run_id`, and
    removes the copy and the temporary folder with everything else that the exam wrote.
    """

    def __init__(self, context: Context, home: Git, run_id: str) -> None:
        self._context, self._home = context, home
        programs = find_exams(context.settings, context.workspace)
        self._exams = tuple(zip(context.settings.exams, programs, strict=True))
        self._folder = exam_folder(run_id, context.env)

    def run(self, commit: str, stage: str, fail_fast: bool = False, again: bool = True) -> list[tuple[Exam, Check]]:
        """Return the result of each exam on a copy of this commit, or of the first ones if the run has to end.

        `stage` says when they ran, in the output that is kept for the user. With `again=False`, exams that already ran
        at this stage are left out.
        """
        logs = [f"{self._folder}/{stage.replace(' ', '-')}-{at}.log" for at in range(1, len(self._exams) + 1)]
        taken = () if again else {output.log for output in read_exam_outputs(self._folder)}
        wanted = [(*exam, log) for exam, log in zip(self._exams, logs, strict=True) if log not in taken]
        results: list[tuple[Exam, Check]] = []
        if not wanted:
            return results
        with open_copy(self._context, self._home, commit, sealed=self._sealed_settings()) as copy:
            for exam, program, log in wanted:
                if self._context.interrupt.level or not (check := self._run_one(exam, program, copy.context, log)):
                    break
                self._keep(exam, check, stage, log)
                results.append((Exam(check.name, check.passed, exam.hint, exam.show == "output"), check))
                if fail_fast and not check.passed:
                    break
        return results

    def _keep(self, exam: ExamCommand, check: Check, stage: str, log: str) -> None:
        """Keep the output of an exam for the user, then tell its result. In this order no event is told twice if the
        run is killed in between and resumed."""
        add_exam_output(
            self._folder,
            ExamOutput(
                stage=stage,
                command=check.name,
                passed=check.passed,
                ending=check.ending,
                duration=check.duration,
                log=log,
            ),
        )
        shows = exam.show == "output"
        self._context.tell(check_finished(check) if shows else events.ExamFinished(check.name, check.passed))

    def _run_one(self, exam: ExamCommand, program: ExamProgram, inside: Context, log: str) -> Check | None:
        """Run one exam; return None if the run has to end before it is over."""
        shows, name = exam.show == "output", inside.redact.text(exam.command)
        timeout = inside.settings.check_timeout if exam.timeout is None else exam.timeout
        inside.tell(events.CheckStarted(name) if shows else events.ExamStarted(name))
        try:
            with temporary_exam_folder(inside.keeper) as folder, inside.log(log) as file:
                process = inside.process(self._command(program, inside, folder), timeout=timeout)
                output = process.capture(head=inside.settings.quoted, tail=MAX_READ, log=file, redact=inside.redact)
        except CannotStart as error:
            hint = "it runs in a copy of the repository, which --setup and .worktreeinclude prepare"
            raise UserError(f'the exam "{one_line(name, 200)}" cannot start: {error.message}', hint) from None
        inside.report_problems(file)
        if output.exit.ended_by in ("interrupt", "max-time"):
            return None
        return check_result(name, output, timeout, exam.hint)

    def _command(self, program: ExamProgram, inside: Context, temporary: str) -> Command:
        """Return the command of an exam, in the sandbox or at least without network."""
        env = {**inside.child_env(0), **program.env, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), temporary)}
        command = Command(argv=program.argv, cwd=str(inside.root), env=env)
        if inside.sandbox:  # where only /tmp and the copy can be written to
            return inside.sandboxed(replace(command, env={**env, "XDG_CACHE_HOME": "/tmp/cache"}))
        return without_network(command, inside.keeper, inside.namespace, inside.workspace)

    def _sealed_settings(self) -> Settings:
        """Return the settings for the sandbox of an exam: it can read the exams, has no network, and can write nowhere
        outside its copy."""
        settings, workspace = self._context.settings, self._context.workspace
        sandbox, shown = settings.sandbox, hidden_paths(settings, workspace)

        def hides_exam(path: str) -> bool:
            (full,) = resolve_paths([path], workspace, os.path.expanduser("~"))
            return any(is_inside(one, (full,)) for one in shown)

        inside = replace(
            sandbox,
            net="off",
            checks=True,
            read=(*sandbox.read, *sandbox.write, *shown),
            write=(),
            hide=tuple(path for path in sandbox.hide if not hides_exam(path)),
        )
        return replace(settings, exams=(), sandbox=inside)
