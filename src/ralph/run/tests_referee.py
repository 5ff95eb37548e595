"""Run the tests as they were when the run began, when it claims to be done."""

from msgspec.structs import replace

from ralph.core.events import Notice
from ralph.core.findings import ChangeFinding, ComparedTests, TestsRule
from ralph.core.judgement import Cells
from ralph.core.model import Iteration, Run
from ralph.core.referees import refuses_claim
from ralph.core.text import listed
from ralph.errors import UserError
from ralph.git.checkpoints import Checkpoints
from ralph.git.client import Git
from ralph.loop import Parts
from ralph.verdict.context import Context
from ralph.verdict.copies import open_copy
from ralph.verdict.old_tests import (
    ChangedTests,
    OldTestsResult,
    compare_in_copy,
    control_tests,
    files_of_checks,
    find_changed_tests,
)
from ralph.verdict.trees import Trees


class TestsReferee:
    """Compares the tests of a claim with those at the start, in a copy. A claim that touched no test costs nothing."""

    def __init__(self, context: Context, trees: Trees, tests: TestsRule) -> None:
        self._context, self._trees, self._tests = context, trees, tests
        self._results: dict[str, OldTestsResult] = {}  # by checkpoint: an unchanged state is compared once

    def compare(self, run: Run, iteration: Iteration, parts: Parts) -> Iteration:
        """Return the iteration with what the tests as they were say about it."""
        repository, head = self._trees.repository, self._trees.checkpoint
        if repository is None or not head:  # without git nobody knows what has changed
            return iteration
        base, _ = Checkpoints(repository, run.id).ends()
        tests = find_changed_tests(repository, base, head, files_of_checks(self._context, repository))
        if not tests:
            return iteration
        if head not in self._results:
            try:
                self._results[head] = self._control(repository, tests, run, iteration)
            except UserError as error:
                if self._context.interrupt.level:
                    return iteration
                finding = ChangeFinding("not comparable", f"could not compare the tests: {error.message}")
                self._results[head] = OldTestsResult(Cells(head=iteration.checks), finding)
        result = self._results[head]
        if result.finding is None:
            return iteration
        compared = ComparedTests(
            result.finding,
            refused=refuses_claim(result.finding, run, self._tests),
            mixed=result.mixed,
            named=tests.plan.reported,
        )
        return replace(iteration, compared=compared)

    def _control(self, repository: Git, tests: ChangedTests, run: Run, iteration: Iteration) -> OldTestsResult:
        cells = Cells(head=iteration.checks, base=run.baseline)
        if run.baseline is None:
            finding = ChangeFinding("not comparable", "could not compare the tests: no check ran before the first turn")
            return OldTestsResult(cells, finding)
        if tests.problem:
            return control_tests(repository, tests, cells, lambda commit: ())
        names = listed((*tests.plan.restored, *tests.plan.removed), 3)
        self._context.tell(Notice(f"running the checks with the tests as they were at the start: {names}", "info"))
        with open_copy(self._context, repository, tests.head) as copy:
            return compare_in_copy(copy, tests, cells)
