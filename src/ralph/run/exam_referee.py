"""Run the exams of a run when it claims to be done, and before its first turn."""

from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Iteration, Run
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.loop import Parts
from ralph.verdict.context import Context
from ralph.verdict.exams import Exams
from ralph.verdict.trees import Trees


class ExamReferee:
    """Runs the exams of a run at its claims."""

    def __init__(self, context: Context, trees: Trees) -> None:
        if trees.repository is None:
            raise UserError("an exam needs git, which cannot use this repository", "`git status` may say why")
        self._exams, self._tell, self._trees = Exams(context, trees.repository, context.folder.id), context.tell, trees

    def examine(self, run: Run, iteration: Iteration, parts: Parts) -> Iteration:
        """Run the exams on the checkpoint of a claimed iteration, up to the first that fails."""
        if not self._trees.checkpoint:  # already reported; a claim without its exams does not count
            return iteration
        for exam, check in self._exams.run(self._trees.checkpoint, f"iteration {iteration.number}", fail_fast=True):
            checks = (*iteration.checks, check) if exam.shows else iteration.checks
            iteration = replace(iteration, exams=(*iteration.exams, exam), checks=checks)
        return iteration

    def take_baseline(self) -> None:
        """Run each exam once before the first turn, and report those that pass already. A resumed run leaves out those
        that it ran before it was killed."""
        for exam, _ in self._exams.run(self._trees.checkpoint, "before the first turn", again=False):
            if exam.passed:
                text = f"the exam passes before the first turn, so it asks nothing new: {one_line(exam.name, 200)}"
                self._tell(events.Notice(text))
