"""Run exams, the checks that the agent doesn't see, on a throwaway copy of a checkpoint.

The agent learns pass or fail. What an exam printed goes to ralph's state folder; everything else that it leaves, in the
copy, in its temporary folder or in its sandbox, is removed with them.
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
from ralph.process.process import Output, Process
from ralph.process.program import CannotStart, Command
from ralph.run.checks import check_finished
from ralph.run.context import Context
from ralph.run.copies import open_copy
from ralph.run.exam_commands import ExamProgram, find_exams, hidden_paths
from ralph.run.trees import Trees
from ralph.sandbox.discovery import resolve_paths
from ralph.sandbox.mounts import is_inside
from ralph.sandbox.offline import without_network
from ralph.settings import Settings
from ralph.settings.schema import ExamCommand
from ralph.store.exam_output import ExamOutput, add_exam_output, exam_folder

_CUT_SHORT = ("interrupt", "max-time")


class ExamReferee:
    """Runs the exams of a run at its claims."""

    def __init__(self, context: Context, settings: Settings, trees: Trees) -> None:
        home = trees.worktree.home if trees.worktree else trees.git
        if home is None:
            raise UserError("an exam needs git, which cannot use this repository", "`git status` may say why")
        self._exams, self._tell, self._trees = Exams(context, settings, home, context.folder.id), context.tell, trees

    def examine(self, run: Run, iteration: Iteration, parts: Parts) -> Iteration:
        """Run the exams on the checkpoint of a claimed iteration, up to the first that fails."""
        if not self._trees.checkpoint:  # the run has said why; the claim does not count without an exam
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
    """The exams of `settings`, as they were when the run started. Their output is kept for the run `run_id`."""

    def __init__(self, context: Context, settings: Settings, home: Git, run_id: str) -> None:
        self._context, self._settings, self._home = context, settings, home
        self._workspace = os.path.join(home.root, home.prefix).rstrip("/")
        programs = find_exams(settings, self._workspace, context.env)
        self._exams = tuple(zip(settings.exams, programs, strict=True))
        self._folder = exam_folder(run_id, context.env)

    def run(self, commit: str, stage: str, fail_fast: bool = False) -> list[tuple[Exam, Check]]:
        """Return the result of each exam on a copy of this commit; of fewer if the run has to end.

        `stage` tells the person when that was.
        """
        results: list[tuple[Exam, Check]] = []
        sealed = self._sealed()
        with open_copy(self._context, self._home, commit, self._settings, self._workspace, sealed=sealed) as copy:
            for at, (exam, program) in enumerate(self._exams, 1):
                log = f"{self._folder}/{stage.replace(' ', '-')}-{at}.log"
                if self._context.interrupt.level or not (check := self._run_one(exam, program, copy.context, log)):
                    break
                add_exam_output(self._folder, _for_person(stage, check, log))
                results.append((Exam(check.name, check.passed, exam.hint, exam.show == "output"), check))
                if fail_fast and not check.passed:
                    break
        return results

    def _run_one(self, exam: ExamCommand, program: ExamProgram, inside: Context, log: str) -> Check | None:
        """Run one exam; return None if the run has to end before it is over."""
        shows, name = exam.show == "output", inside.redact.text(exam.command)
        timeout = self._settings.check_timeout if exam.timeout is None else exam.timeout
        inside.tell(events.CheckStarted(name) if shows else events.ExamStarted(name))
        try:
            with _temporary_folder(inside.keeper) as folder:
                process = Process(
                    self._command(program, inside, folder),
                    keeper=inside.keeper,
                    limits=inside.limits(timeout),
                    interrupt=inside.interrupt,
                    tick=inside.tick,
                )
                with inside.log(log) as file:
                    output = process.capture(
                        head=self._settings.quoted, tail=ERROR_LIMIT, log=file, redact=inside.redact
                    )
        except CannotStart as error:
            hint = "it runs in a copy of the repository, which --setup and .worktreeinclude prepare"
            raise UserError(f'the exam "{one_line(name, 200)}" cannot start: {error.message}', hint) from None
        inside.tell_problems(file)
        if output.exit.ended_by in _CUT_SHORT:
            return None
        check = _result(name, exam, output, timeout)
        inside.tell(check_finished(check) if shows else events.ExamFinished(name, check.passed))
        return check

    def _command(self, program: ExamProgram, inside: Context, temporary: str) -> Command:
        """Return the command of an exam, in the sandbox or at least without network."""
        env = {**inside.child_env(0), **program.env, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), temporary)}
        command = Command(argv=program.argv, cwd=str(inside.root), env=env)
        if inside.sandbox:  # where only /tmp and the copy can be written to
            return inside.sandboxed(replace(command, env={**env, "XDG_CACHE_HOME": "/tmp/cache"}))
        return without_network(command, self._workspace, inside.keeper)

    def _sealed(self) -> Settings:
        """Return the settings for the sandbox of an exam: it sees the exams, has no network, and leaves nothing."""
        settings, env = self._settings, self._context.env
        sandbox, home = settings.sandbox, env.get("HOME") or os.path.expanduser("~")
        shown = hidden_paths([program for _, program in self._exams], self._workspace, env)

        def hides_exam(path: str) -> bool:
            (full,) = resolve_paths([path], self._workspace, home)
            return any(is_inside(one, (full,)) for one in shown)

        return replace(
            settings,
            exams=(),
            sandbox=replace(
                sandbox,
                net="off",
                checks=True,
                read=(*sandbox.read, *sandbox.write, *shown),
                write=(),
                hide=tuple(path for path in sandbox.hide if not hides_exam(path)),
            ),
        )


@contextmanager
def _temporary_folder(keeper: Keeper) -> Iterator[str]:
    """Yield a folder that is gone afterwards, even if ralph is killed."""
    folder = mkdtemp(prefix="ralph-exam-")
    keeper.set_cleanup(("/bin/rm", "-rf", folder), key=folder)
    try:
        yield folder
    finally:
        remove_tree(folder)
        keeper.set_cleanup((), key=folder)


def _result(name: str, exam: ExamCommand, output: Output, timeout: float | None) -> Check:
    ended = output.exit
    return Check(
        name=name,
        passed=ended.code == 0 and not ended.ended_by,
        # A program that SIGKILL ended has the exit code 137, as in a shell.
        exit_code=128 - ended.code if ended.code is not None and ended.code < 0 else ended.code,
        head=output.head,
        tail=output.tail,
        cut=output.cut,
        hint=exam.hint,
        duration=ended.duration,
        timeout=timeout if ended.ended_by == "turn-timeout" else None,
    )


def _for_person(stage: str, check: Check, log: str) -> ExamOutput:
    return ExamOutput(
        stage=stage,
        command=check.name,
        passed=check.passed,
        ending=check.ending,
        duration=check.duration,
        log=log,
    )
