"""Run exams, the checks that the agent doesn't see, on a throwaway copy of a checkpoint.

The agent learns only whether it passed. ralph keeps what an exam printed in its state folder, and removes the copy and
the temporary folder with everything else that the exam wrote.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import mkdtemp

from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Check, Exam, Iteration, Run
from ralph.core.prompts import ERROR_LIMIT
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.files import remove_tree
from ralph.git.client import Git
from ralph.loop import Parts
from ralph.process.keeper import Keeper
from ralph.process.program import CannotStart, Command
from ralph.run.checks import check_finished, check_result
from ralph.run.context import Context
from ralph.run.copies import open_copy
from ralph.run.exam_commands import ExamProgram, find_exams, hidden_paths
from ralph.run.trees import Trees
from ralph.sandbox.discovery import resolve_paths
from ralph.sandbox.mounts import is_inside
from ralph.sandbox.sandbox import without_network
from ralph.settings import Settings
from ralph.settings.schema import ExamCommand
from ralph.store.folder import ExamOutput, add_exam_output, exam_folder

_CUT_SHORT = ("interrupt", "max-time")


class ExamReferee:
    """Runs the exams of a run at its claims."""

    def __init__(self, context: Context, trees: Trees) -> None:
        if trees.home is None:
            raise UserError("an exam needs git, which cannot use this repository", "`git status` may say why")
        self._exams, self._tell, self._trees = Exams(context, trees.home, context.folder.id), context.tell, trees

    def examine(self, run: Run, iteration: Iteration, parts: Parts) -> Iteration:
        """Run the exams on the checkpoint of a claimed iteration, up to the first that fails."""
        if not self._trees.checkpoint:  # already reported; a claim without its exams does not count
            return iteration
        for exam, check in self._exams.run(self._trees.checkpoint, f"iteration {iteration.number}", fail_fast=True):
            checks = (*iteration.checks, check) if exam.shows else iteration.checks
            iteration = replace(iteration, exams=(*iteration.exams, exam), checks=checks)
        return iteration

    def take_baseline(self) -> None:
        """Run each exam once before the first turn, and report those that pass already."""
        for exam, _ in self._exams.run(self._trees.checkpoint, "before the first turn"):
            if exam.passed:
                text = f"the exam passes before the first turn, so it asks nothing new: {one_line(exam.name, 200)}"
                self._tell(events.Notice(text))


class Exams:
    """The exams of a run, as they were when it started. ralph stores their output for the run `run_id`."""

    def __init__(self, context: Context, home: Git, run_id: str) -> None:
        self._context, self._home = context, home
        programs = find_exams(context.settings, context.workspace, context.env)
        self._exams = tuple(zip(context.settings.exams, programs, strict=True))
        self._folder = exam_folder(run_id, context.env)

    def run(self, commit: str, stage: str, fail_fast: bool = False) -> list[tuple[Exam, Check]]:
        """Return the result of each exam on a copy of this commit, or of the first ones if the run has to end.

        `stage` says when they ran, in the output that is kept for the user.
        """
        results: list[tuple[Exam, Check]] = []
        with open_copy(self._context, self._home, commit, sealed=self._sealed_settings()) as copy:
            for at, (exam, program) in enumerate(self._exams, 1):
                log = f"{self._folder}/{stage.replace(' ', '-')}-{at}.log"
                if self._context.interrupt.level or not (check := self._run_one(exam, program, copy.context, log)):
                    break
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
                results.append((Exam(check.name, check.passed, exam.hint, exam.show == "output"), check))
                if fail_fast and not check.passed:
                    break
        return results

    def _run_one(self, exam: ExamCommand, program: ExamProgram, inside: Context, log: str) -> Check | None:
        """Run one exam; return None if the run has to end before it is over."""
        shows, name = exam.show == "output", inside.redact.text(exam.command)
        timeout = inside.settings.check_timeout if exam.timeout is None else exam.timeout
        inside.tell(events.CheckStarted(name) if shows else events.ExamStarted(name))
        try:
            with _temporary_folder(inside.keeper) as folder, inside.log(log) as file:
                process = inside.process(self._command(program, inside, folder), timeout=timeout)
                output = process.capture(head=inside.settings.quoted, tail=ERROR_LIMIT, log=file, redact=inside.redact)
        except CannotStart as error:
            hint = "it runs in a copy of the repository, which --setup and .worktreeinclude prepare"
            raise UserError(f'the exam "{one_line(name, 200)}" cannot start: {error.message}', hint) from None
        inside.report_problems(file)
        if output.exit.ended_by in _CUT_SHORT:
            return None
        check = check_result(name, output, timeout, exam.hint)
        inside.tell(check_finished(check) if shows else events.ExamFinished(name, check.passed))
        return check

    def _command(self, program: ExamProgram, inside: Context, temporary: str) -> Command:
        """Return the command of an exam, in the sandbox or at least without network."""
        env = {**inside.child_env(0), **program.env, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), temporary)}
        command = Command(argv=program.argv, cwd=str(inside.root), env=env)
        if inside.sandbox:  # where only /tmp and the copy can be written to
            return inside.sandboxed(replace(command, env={**env, "XDG_CACHE_HOME": "/tmp/cache"}))
        return without_network(command, inside.workspace, inside.keeper)

    def _sealed_settings(self) -> Settings:
        """Return the settings for the sandbox of an exam: it can read the exams, has no network, and can write nowhere
        outside its copy."""
        settings, workspace, env = self._context.settings, self._context.workspace, self._context.env
        sandbox, home = settings.sandbox, env.get("HOME") or os.path.expanduser("~")
        shown = hidden_paths(settings, workspace, env)

        def hides_exam(path: str) -> bool:
            (full,) = resolve_paths([path], workspace, home)
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


@contextmanager
def _temporary_folder(keeper: Keeper) -> Iterator[str]:
    """Yield a folder that is removed afterwards, even if ralph is killed."""
    folder = mkdtemp(prefix="ralph-exam-")
    keeper.set_cleanup(("/bin/rm", "-rf", folder), key=folder)
    try:
        yield folder
    finally:
        remove_tree(folder)
        keeper.set_cleanup((), key=folder)
