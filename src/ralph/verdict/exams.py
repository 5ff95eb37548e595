"""Run exams, the checks that the agent doesn't see, on a throwaway copy."""

import os

from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Check, Exam
from ralph.core.runner_output import MAX_READ
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.git.client import Git
from ralph.process.program import CannotStart, Command
from ralph.sandbox.discovery import resolve_paths
from ralph.sandbox.mounts import is_inside
from ralph.sandbox.sandbox import without_network
from ralph.settings import Settings
from ralph.settings.schema import ExamCommand
from ralph.store.folder import ExamOutput, add_exam_output, exam_folder, read_exam_outputs
from ralph.verdict.checks import check_finished, check_result
from ralph.verdict.context import Context
from ralph.verdict.copies import open_copy, temporary_exam_folder
from ralph.verdict.exam_commands import ExamProgram, find_exams, hidden_paths


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
        stored = () if again else {output.log for output in read_exam_outputs(self._folder)}
        wanted = [(*exam, log) for exam, log in zip(self._exams, logs, strict=True) if log not in stored]
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
        sandbox, hidden = settings.sandbox, hidden_paths(settings, workspace)

        def hides_exam(path: str) -> bool:
            (full,) = resolve_paths([path], workspace, os.path.expanduser("~"))
            return any(is_inside(place, (full,)) for place in hidden)

        inside = replace(
            sandbox,
            net="off",
            checks=True,
            read=(*sandbox.read, *sandbox.write, *hidden),
            write=(),
            hide=tuple(path for path in sandbox.hide if not hides_exam(path)),
        )
        return replace(settings, exams=(), sandbox=inside)
