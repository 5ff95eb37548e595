"""Judge a change: run the checks on both ends and on the tests as they were, in one copy, up to the first refutation.

`core/judgement.py` decides what the results mean. Nothing is asked that the caller didn't ask for.
"""

import math
import os
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.findings import TestsRule
from ralph.core.judgement import (
    Cell,
    Cells,
    ChangeEvidence,
    Judgement,
    asks_for_change,
    is_green,
    judge_change,
    leave_out,
    new_failure,
    red_on_both_sides,
)
from ralph.core.model import Exam, Review
from ralph.core.proof import Proof
from ralph.core.text import listed
from ralph.errors import UserError
from ralph.files import read_head
from ralph.git.client import Git
from ralph.git.protect import refused_changes
from ralph.settings.schema import Protection
from ralph.verdict.context import Context
from ralph.verdict.copies import PreparedCopy, open_copy
from ralph.verdict.exam_commands import find_exams
from ralph.verdict.exams import Exams
from ralph.verdict.missing import startup_advice
from ralph.verdict.old_tests import (
    LFS_POINTER,
    ChangedTests,
    control_tests,
    files_of_checks,
    find_changed_tests,
    is_gone,
    lfs_pointers,
    undone_code,
)
from ralph.verdict.undo import prove_change
from ralph.verdict.verify import TimeOverError, check_copy, time_limit

STAGE = "judge"


class Change(Struct, frozen=True):
    """What is judged: two commits of the user's repository."""

    home: Git
    base: str
    head: str


class Questions(Struct, frozen=True, kw_only=True):
    """What is asked about a change besides its checks and its tests. The exams are in the settings."""

    tests: TestsRule = "as-they-were"
    protect: Protection = Protection()
    review: Callable[[Cell], Sequence[Review]] | None = None
    """Returns the reviews of the change, given the results of its checks."""
    proves: bool = False


class JudgedChange(Struct, frozen=True, kw_only=True):
    """The verdict about a change with everything that it rests on."""

    judgement: Judgement
    evidence: ChangeEvidence = ChangeEvidence(cells=Cells(head=()))
    tests: ChangedTests | None = None
    runs: int = 0
    """How many times the checks ran."""
    seconds: float = 0.0
    """How long they ran, all together."""
    is_in_place: bool = False
    """The commands saw the copy in place of the user's tree."""


class _Bench:
    """One copy, in which the checks run on one state after another."""

    def __init__(self, copy: PreparedCopy, step: Callable[[int], None]) -> None:
        self._copy, self._step = copy, step
        self.runs, self.seconds, self.limit = 0, 0.0, math.inf
        self.left_out: tuple[str, ...] = ()

    def check(self, commit: str) -> Cell:
        """Return the results of the checks on a commit, without tests that fail on both sides."""
        if self.runs:
            self._copy.check_out(commit)
            os.makedirs(self._copy.worktree.workspace, exist_ok=True)  # it may be new, or gone
        self.runs += 1
        self._step(self.runs)
        cell = check_copy(self._copy, self.limit)
        self.seconds += sum(check.duration for check in cell)
        return leave_out(cell, self.left_out)

    def startup_problem(self, cells: Cells) -> str:
        """Return why a check can start neither before nor now; empty if it can."""
        starts = {check.name: check for check in cells.base or ()}
        advice = [
            startup_advice(self._copy.context, check)
            for check in cells.head
            if check.name in starts and check.exit_code == starts[check.name].exit_code and not check.passed
        ]
        return next(filter(None, advice), "")

    def check_within_limit(self, commit: str) -> Cell | None:
        try:
            return self.check(commit)
        except TimeOverError:
            return None


def judge(
    change: Change, questions: Questions, context: Context, step: Callable[[int], None] = lambda number: None
) -> JudgedChange:
    """Return the verdict about a change by the checks and the exams in the settings of `context`. `step` is called with
    the number of each run of the checks before it starts."""
    evidence, tests = ChangeEvidence(cells=Cells(head=()), tests=questions.tests), None
    with open_copy(context, change.home, change.head) as copy:
        bench = _Bench(copy, step)
        is_in_place = copy.context.namespace is not None
        if names := _missing_content(change, copy):
            evidence = replace(evidence, problem=f"the content of {listed(names, 3)} is in Git LFS, and not here")
        else:
            evidence, tests = _run_checks(change, evidence, bench, context)
    is_refuted = partial(is_gone, change.home, change.head)
    for ask in (_ask_for_protected_files, _ask_exams, _ask_reviews, _ask_proof):
        if judge_change(evidence, is_refuted).verdict != "holds":
            break
        evidence = ask(change, questions, evidence, context)
    return JudgedChange(
        judgement=judge_change(evidence, is_refuted),
        evidence=evidence,
        tests=tests,
        runs=bench.runs,
        seconds=bench.seconds,
        is_in_place=is_in_place,
    )


def _run_checks(
    change: Change, evidence: ChangeEvidence, bench: _Bench, context: Context
) -> tuple[ChangeEvidence, ChangedTests | None]:
    """Run the checks on both ends, and on the states that the changed tests need."""
    cells = Cells(head=bench.check(change.head))
    if not any(check.timeout for check in cells.head):
        cells = replace(cells, base=bench.check(change.base))
    if not is_green(cells.head) and new_failure(cells):
        cells = replace(cells, head_again=bench.check(change.head))
    evidence = replace(evidence, cells=cells, problem=bench.startup_problem(cells))
    if judge_change(evidence).verdict != "holds":
        return evidence, None
    bench.left_out = red_on_both_sides(cells)
    head = leave_out(cells.head, bench.left_out)
    cells = replace(cells, head=head, base=leave_out(cells.base or (), bench.left_out))
    bench.limit = time_limit(sum(check.duration for check in head))
    tests = find_changed_tests(change.home, change.base, change.head, files_of_checks(context, change.home))
    if tests:
        # The head was green in this copy, so it needs no second run.
        result = control_tests(change.home, tests, replace(cells, head_again=head), bench.check)
        cells = replace(result.cells, head_again=None)
        evidence = replace(evidence, compared=result.finding, mixed=result.mixed)
    evidence = replace(evidence, cells=_with_raw_ends(cells, evidence.cells), named=tests.plan.reported)
    if judge_change(evidence).verdict == "holds" and not asks_for_change(cells):
        evidence = replace(evidence, cells=replace(evidence.cells, undone=_undo_code(change, tests, head, bench)))
    return evidence, tests


def _with_raw_ends(cells: Cells, raw: Cells) -> Cells:
    """Return the cells with both ends as they are: the verdict names tests that fail on both sides."""
    return replace(cells, head=raw.head, base=raw.base)


def _undo_code(change: Change, tests: ChangedTests, head: Cell, bench: _Bench) -> Cell | None:
    """Return the results without the change of the code; None if it changes only tests, or only code."""
    git, commit = change.home, undone_code(change.home, tests)
    if git.tree_at(commit) in (git.tree_at(change.head), git.tree_at(change.base)):
        return None
    # Checks that hang without the change notice it, as in a proof.
    return bench.check_within_limit(commit) or tuple(replace(check, passed=False, tests=None) for check in head)


def _ask_for_protected_files(
    change: Change, questions: Questions, evidence: ChangeEvidence, context: Context
) -> ChangeEvidence:
    if not questions.protect.globs:
        return evidence
    out = change.home.run("diff-tree", "-r", "-z", "--name-status", "--no-renames", change.base, change.head)
    fields = [os.fsdecode(field) for field in out.split(b"\0")[:-1]]
    prefix = f"{change.home.prefix}/" if change.home.prefix else ""
    changed = [
        (path.removeprefix(prefix), status == "A")
        for status, path in zip(fields[::2], fields[1::2], strict=True)
        if path.startswith(prefix)
    ]
    refuses_new = questions.protect.new == "refuse"
    return replace(evidence, protected=refused_changes(changed, questions.protect.globs, refuses_new=refuses_new))


def _ask_exams(change: Change, questions: Questions, evidence: ChangeEvidence, context: Context) -> ChangeEvidence:
    settings = context.settings
    if not settings.exams:
        return evidence
    # The name of an exam is its script, not the path to it.
    scripts = [os.path.basename(program.script) for program in find_exams(settings, context.workspace)]
    results = Exams(context, change.home, context.folder.id).run(change.head, STAGE, fail_fast=True)
    if context.interrupt.level:
        raise UserError("interrupted", "start it again")
    exams = tuple(
        Exam(script, exam.passed, exam.hint, exam.shows) for script, (exam, _) in zip(scripts, results, strict=False)
    )
    return replace(evidence, exams=exams)


def _ask_reviews(change: Change, questions: Questions, evidence: ChangeEvidence, context: Context) -> ChangeEvidence:
    if questions.review is None:
        return evidence
    return replace(evidence, reviews=tuple(questions.review(evidence.cells.head)))


def _ask_proof(change: Change, questions: Questions, evidence: ChangeEvidence, context: Context) -> ChangeEvidence:
    if not questions.proves:
        return evidence
    proof: Proof = prove_change(change.home, change.base, change.head, context)
    return replace(evidence, proof=proof)


def _missing_content(change: Change, copy: PreparedCopy) -> list[str]:
    """Return the changed files whose content is in Git LFS, but not on this machine."""
    out = change.home.run("diff-tree", "-r", "-z", "--name-only", "--diff-filter=d", change.base, change.head)
    paths = [os.fsdecode(path) for path in out.split(b"\0")[:-1]]
    return [path for path in lfs_pointers(change.home, change.head, paths) if _is_pointer(copy, path)]


def _is_pointer(copy: PreparedCopy, path: str) -> bool:
    try:
        return read_head(os.path.join(copy.worktree.path, path), len(LFS_POINTER)) == LFS_POINTER.encode()
    except OSError:
        return False
