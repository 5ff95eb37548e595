"""The verdict about a change: cells in, holds, refuted or could not judge out, with reasons and notes. Pure.

A cell has the results of every check on one state of the repository:

                     tests as they were    tests as they are
    code as it was   base                  old_code (U), undone
    code as it is    old_tests (O)         head

`missing_cell` names the next one to run, in the order of cost. The finding letters are those of the guide.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.findings import ChangeFinding, TestsRule
from ralph.core.model import Check, Exam, Review, Run
from ralph.core.proof import Proof
from ralph.core.runner_output import MAX_NAMES, ReportedTests, read_tests
from ralph.core.text import clean, listed, one_line, plural

Cell = tuple[Check, ...]
CellName = Literal["head", "base", "old_tests", "head_again", "old_tests_again", "old_code"]
ChangeVerdict = Literal["holds", "refuted", "could not judge"]

LAST_LINES = 3  # of an output that names no tests, to recognise the same failure
# These print a count only if a test fails: Gradle always, Maven with -q.
SILENT_WHEN_GREEN = frozenset({"gradle", "surefire"})


class Cells(Struct, frozen=True, kw_only=True):
    """The results of the checks on each state; None if they were not run on it."""

    head: Cell
    base: Cell | None = None
    old_tests: Cell | None = None
    head_again: Cell | None = None
    """Red the first time: again. If O is red: in O's copy, where the tests as they are must pass."""
    old_tests_again: Cell | None = None
    old_code: Cell | None = None
    undone: Cell | None = None
    """As U, but with the tests in new files as well. If it is red, something asks for the change."""


# One check: F, Z, N


def distrust(check: Check, earlier: Sequence[Check]) -> ChangeFinding | None:
    """Return why exit code 0 of this check doesn't count (F or Z).

    `earlier` are its results so far, the one before the work first. An unknown runner gives no finding.
    """
    if check.exit_code != 0 or check.timeout or check.void:
        return None
    tests = check.tests
    if tests and tests.failed and not (earlier and _hides_failures(earlier[0])):
        return ChangeFinding("F", f"exits with 0, but reports {_failed(tests)}", tests.failing, check.name)
    counts = [then.tests for then in earlier if then.tests and then.tests.ran]
    if not counts or (tests and tests.ran):
        return None
    before = counts[-1].ran
    if tests and tests.ran == 0:
        return ChangeFinding("Z", f"ran 0 tests ({before} before)", (), check.name)
    if all(SILENT_WHEN_GREEN.issuperset(count.runners) for count in counts):
        return None
    return ChangeFinding("Z", f"exits with 0, but no longer reports any tests ({before} before)", (), check.name)


def _hides_failures(check: Check) -> bool:
    """Whether the check reports failed tests and exits with 0."""
    return check.exit_code == 0 and check.tests is not None and check.tests.failed > 0


def hidden_failures(checks: Iterable[Check]) -> list[str]:
    """Return a sentence for each check that reports failed tests but exits with 0, before the work begins."""
    return [
        f"{one_line(check.name, 80)} exits with 0, but reports {_failed(check.tests)}: its exit code counts"
        for check in checks
        if check.tests and _hides_failures(check)
    ]


def _failed(tests: ReportedTests) -> str:
    names = f" ({listed(tests.failing, 3)})" if tests.failing else ""
    return f"{tests.failed} failed{names}"


def fewer_tests(now: Iterable[Check], before: Iterable[Check]) -> ChangeFinding | None:
    """Return the finding N: the same runners of the same checks ran fewer tests than before."""
    starts = {check.name: check.tests for check in before}
    pairs = [(check.tests, starts.get(check.name)) for check in now]
    counts = [(new.ran or 0, old.ran or 0) for new, old in pairs if new and old and new.runners == old.runners]
    ran, ran_before = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    return ChangeFinding("N", f"{plural(ran, 'test')} ran, {ran_before} before") if ran < ran_before else None


def ran_no_tests(results: Iterable[Cell]) -> bool:
    """Whether all checks are known test runners, and none of them ever ran a test."""
    checks = [check for cell in results for check in cell]
    reports = [check.tests for check in checks if check.passed]
    return (
        bool(reports)
        and all(tests and tests.ran == 0 for tests in reports)
        and not any(check.tests and check.tests.ran for check in checks)
    )


def results_so_far(run: Run) -> list[Cell]:
    """Return the results of all checks in this run, those before the first turn first."""
    return [run.baseline or (), *(iteration.checks for iteration in run.iterations)]


def describe_tests(run: Run) -> str:
    """Return what the reason of a run that is done adds about its tests: `; 38 tests ran, 41 before`."""
    if ran_no_tests(results_so_far(run)):
        return "; 0 tests ran"
    fewer = fewer_tests(run.last.checks, run.baseline or ()) if run.last else None
    compared = run.last.compared if run.last else None
    return (f"; {fewer.text}" if fewer else "") + (compared.as_addition() if compared else "")


# Tests as they were: S, weakened, adapted, load error


def compare_tests(cells: Cells, is_gone: Callable[[str], bool] = lambda test: False) -> ChangeFinding | None:
    """Return what the tests as they were say about the code as it is; None if that is not asked, or a cell is missing.

    `is_gone` tells whether a test no longer exists.
    """
    if cells.old_tests is None or missing_cell(cells):
        return None
    if is_green(cells.old_tests):
        return ChangeFinding("green", "test files changed, and as they were, they pass")
    if cells.head_again is not None and not is_green(cells.head_again):
        return ChangeFinding("not comparable", "could not compare the tests: as they are now, they fail in the copy")
    if cells.old_tests_again is not None and is_green(cells.old_tests_again):
        return ChangeFinding(
            "not comparable", "could not compare the tests: as they were, they failed once and then passed"
        )
    if tests := still_red(cells):
        text = f"the checks pass only with changed tests ({listed(tests, 3)} {_was(tests)} red at the start)"
        return ChangeFinding("S", text, tests)
    if errors := _load_errors(cells.old_tests):
        return ChangeFinding(
            "load error", f"the tests as they were don't load on this code: {listed(errors, 3)}", errors
        )
    return _weakened_or_adapted(cells, is_gone)


def still_red(cells: Cells) -> tuple[str, ...]:
    """Return the tests that were red at the start and still fail as they were (S).

    If the output names no tests: checks that fail with lines of the same failure. A load error is no name.
    """
    tests: list[str] = []
    starts = {check.name: check for check in cells.base or () if not check.passed}
    for check in cells.old_tests or ():
        start = starts.get(check.name)
        if check.passed or start is None:
            continue
        if _names_tests(check) or _names_tests(start):
            tests += [name for name in _failing(check) if name in _failing(start)]
        elif _is_same_failure(check, start):
            tests.append(check.name)
    return tuple(dict.fromkeys(tests))


def _names_tests(check: Check) -> bool:
    """Whether the output says which tests failed, or which could not be loaded."""
    return bool(_failing(check) or _load_errors((check,)))


def _is_same_failure(check: Check, start: Check) -> bool:
    """Whether the last lines of a failed check are among those that it printed at the start. Summaries are left out:
    their counts change as soon as one of several tests is fixed."""
    lines = [line for line in _lines(check) if read_tests(line) is None][-LAST_LINES:]
    return bool(lines) and {*lines}.issubset(_lines(start))


def _weakened_or_adapted(cells: Cells, is_gone: Callable[[str], bool]) -> ChangeFinding:
    if errors := _load_errors(cells.old_code or ()):
        text = f"could not compare the tests: as they are, they don't load on the old code: {listed(errors, 3)}"
        return ChangeFinding("not comparable", text, errors)
    starts, now = ({check.name: check for check in cell or ()} for cell in (cells.base, cells.old_code))
    failing: list[str] = []
    weak: list[str] = []
    for check in cells.old_tests or ():
        if check.passed:
            continue
        names = _failing(check) or (check.name,)
        start, undone = starts.get(check.name), now.get(check.name)
        if undone and len(_failing(undone)) >= MAX_NAMES:
            return ChangeFinding("not comparable", "could not compare the tests: too many of them fail on the old code")
        if not _failing(check) and not (start and start.passed) and not (undone and undone.passed):
            text = f"could not compare the tests: {one_line(check.name, 80)} doesn't name the tests that fail"
            return ChangeFinding("not comparable", text)
        failing += names
        if undone and undone.passed:
            weak += names
        elif undone and _failing(check):
            weak += [name for name in names if name not in _failing(undone)]
    if not weak:
        return ChangeFinding(
            "adapted",
            f"{plural(len(failing), 'test')} {_was(failing)} changed to fit: {listed(failing, 3)}",
            tuple(failing),
        )
    checks = {check.name for check in cells.old_tests or ()}  # stand for tests that their output doesn't name
    rest = "and is gone" if weak[0] not in checks and is_gone(weak[0]) else "and as it is accepts the old code"
    more = f"; {plural(len(weak) - 1, 'more test')} like it" if len(weak) > 1 else ""
    return ChangeFinding("weakened", f"{weak[0]}, as it was, fails now, {rest}{more}", tuple(weak))


def missing_cell(cells: Cells) -> CellName | None:
    """Return the cell to run next to compare the tests if O is red; None if everything needed is there."""
    if cells.old_tests is None or is_green(cells.old_tests):
        return None
    if cells.head_again is None:
        return "head_again"
    if not is_green(cells.head_again):
        return None
    if cells.old_tests_again is None:
        return "old_tests_again"
    if is_green(cells.old_tests_again):
        return None
    if cells.base is None:
        return "base"
    if still_red(cells) or _load_errors(cells.old_tests):
        return None
    return "old_code" if cells.old_code is None else None


# The whole change


class ChangeEvidence(Struct, frozen=True, kw_only=True):
    """Everything that is known about a change. What was not asked is empty."""

    cells: Cells
    tests: TestsRule = "as-they-were"
    compared: ChangeFinding | None = None
    """What the tests as they were say, if the cells alone don't: they could not be run, for example."""
    mixed: tuple[str, ...] = ()
    """Changed files such as pyproject.toml, with which as they were the old tests only fail."""
    named: tuple[str, ...] = ()
    """Changed files that a check names although they are no tests."""
    problem: str = ""
    """Why it cannot be judged: no base, nothing changed, no time."""
    canary: str = ""
    """Why the checks don't test the copy, if they stay green with every source file broken."""
    protected: tuple[str, ...] = ()
    """Protected files that the change touches."""
    exams: tuple[Exam, ...] = ()
    reviews: tuple[Review, ...] = ()
    proof: Proof | None = None


class Judgement(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdict. `looks` are what a person should look at although the change holds; `notes` don't matter to it."""

    verdict: ChangeVerdict
    reasons: tuple[str, ...] = ()
    looks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    findings: tuple[ChangeFinding, ...] = ()
    left_out: tuple[str, ...] = ()
    """Tests that fail before and now, which say nothing about the change."""

    @property
    def exit_code(self) -> int:
        return {"holds": 0, "refuted": 1, "could not judge": 2}[self.verdict]

    @property
    def headline(self) -> str:
        return f"holds, but look: {self.looks[0]}" if self.verdict == "holds" and self.looks else self.verdict


def judge_change(evidence: ChangeEvidence, is_gone: Callable[[str], bool] = lambda test: False) -> Judgement:
    """Return the verdict; the first refutation in the order of cost is its reason."""
    if problem := evidence.problem or _cannot_judge(evidence.cells) or evidence.canary:
        return Judgement(verdict="could not judge", reasons=(problem,))
    left_out = red_on_both_sides(evidence.cells)
    if reason := new_failure(evidence.cells):
        return Judgement(verdict="refuted", reasons=(reason,), left_out=left_out)
    evidence = replace(evidence, cells=leave_out_of_cells(evidence.cells, left_out))
    if still := next((check for check in evidence.cells.head if not check.passed), None):
        why = listed(_load_errors((still,)), 3) or _last_line((still,))
        return Judgement(
            verdict="could not judge", reasons=(f"{one_line(still.name, 80)} fails before and now: {why}",)
        )
    compared = evidence.compared or compare_tests(evidence.cells, is_gone)
    findings = [*_count_findings(evidence.cells), *([compared] if compared else [])]
    is_refuting = ("F", "Z", "S") if evidence.tests == "as-they-were" else ("F", "Z")
    reasons = [finding.sentence for finding in findings if finding.kind in is_refuting]
    reasons += _refusals(evidence)
    looks = [
        finding.text for finding in findings if finding.kind in ("S", "weakened") and finding.kind not in is_refuting
    ]
    notes = [finding.text for finding in findings if finding.kind not in (*is_refuting, "S", "weakened", "green")]
    if left_out:
        fail = f"{plural(len(left_out), 'test')} that fail{'s' * (len(left_out) == 1)}"
        notes.insert(0, f"left out {fail} here before and now: {listed(left_out, 3)}")
    return Judgement(
        verdict="refuted" if reasons else "holds",
        reasons=tuple(reasons[:1]),
        looks=tuple(looks),
        notes=(*notes, *_remarks(evidence)),
        findings=tuple(findings),
        left_out=left_out,
    )


def leave_out_of_cells(cells: Cells, names: Sequence[str]) -> Cells:
    """Return the cells without the failures of these tests."""
    results: dict[str, Cell | None] = {name: getattr(cells, name) for name in cells.__struct_fields__}
    return replace(cells, **{name: leave_out(cell, names) for name, cell in results.items() if cell})


def leave_out(cell: Cell, names: Sequence[str]) -> Cell:
    """Return the results without the failures of these tests. A check that has no other failure passes."""
    return tuple(_without(check, frozenset(names)) for check in cell)


def _without(check: Check, names: frozenset[str]) -> Check:
    tests = check.tests
    if check.passed or tests is None or not tests.ran or len(tests.failing) >= MAX_NAMES:
        return check
    failing = tuple(name for name in tests.failing if name not in names)
    errors = tuple(name for name in tests.load_errors if name not in names)
    if (failing, errors) == (tests.failing, tests.load_errors):
        return check
    rest = replace(tests, failing=failing, load_errors=errors, failed=len(failing) + len(errors))
    return replace(check, passed=not failing and not errors, tests=rest)


def _count_findings(cells: Cells) -> list[ChangeFinding]:
    """Return the findings F, Z and N."""
    base = {check.name: check for check in cells.base or ()}
    findings = [distrust(check, [base[check.name]] if check.name in base else []) for check in cells.head]
    return [finding for finding in (*findings, fewer_tests(cells.head, cells.base or ())) if finding]


def _refusals(evidence: ChangeEvidence) -> list[str]:
    """Return what refutes a change whose tests hold."""
    files = [f"protected files were changed: {listed(evidence.protected, 3)}"] if evidence.protected else []
    exams = [f"the exam fails: {one_line(exam.name, 200)}" for exam in evidence.exams if not exam.passed]
    return [
        *files,
        *exams,
        *(
            f"a review asks for changes: {one_line(review.changes, 300)}"
            for review in evidence.reviews
            if review.changes
        ),
    ]


def _remarks(evidence: ChangeEvidence) -> list[str]:
    """Return what should be known about a change, whatever the verdict."""
    remarks = [f"not reviewed: {one_line(review.problem, 200)}" for review in evidence.reviews if review.problem]
    proof = evidence.proof
    if proof and proof.verdict == "nothing tested":
        remarks.append("every check passes without any of this change")
    elif proof and proof.untested:
        remarks.append(f"no check notices if these are undone: {listed([part.place for part in proof.untested], 3)}")
    elif proof:
        remarks.append(_proof_words(proof))
    if evidence.mixed:
        remarks.append(f"{listed(evidence.mixed, 3)} changed how the tests run")
    if evidence.named:
        remarks.append(f"a check names {listed(evidence.named, 3)}, which changed")
    if evidence.cells.base is not None and not asks_for_change(evidence.cells) and not evidence.exams:
        remarks.append("the checks passed before as well, so they prove little: nothing here asked for this change")
    return remarks


def _proof_words(proof: Proof) -> str:
    missed = f"; {plural(proof.not_tried, 'part')} not tried for lack of time" if proof.not_tried else ""
    each = "the one part" if proof.tried == 1 else f"each of {proof.tried} parts"
    return {
        "tested": f"proved: a check fails without {each}{missed}",
        "red": "not proved: the checks fail in another copy of this work",
        "no time": "not proved: running the checks twice takes too long",
    }.get(proof.verdict, "nothing to prove: the change has no code that a check could miss")


def asks_for_change(cells: Cells) -> bool:
    """Return whether a check is known to fail without the change."""
    return any(cell is not None and not is_green(cell) for cell in (cells.base, cells.old_code, cells.undone))


def _cannot_judge(cells: Cells) -> str:
    """Return why red checks at the head say nothing about the change."""
    if is_green(cells.head):
        return ""
    if slow := next((check for check in cells.head if check.timeout), None):
        return f"{one_line(slow.name, 80)} {slow.ending}"
    if cells.head_again is not None and is_green(cells.head_again):
        return "the checks failed once and passed the next time, on the same files"
    if not cells.base or is_green(cells.base):
        return ""
    if not any(check.tests and check.tests.ran for cell in (cells.head, cells.base) for check in cell):
        if all(_last_lines(check) == _last_lines(start) for check, start in _red_pairs(cells)):
            return f"no test could start, before and now: {_last_line(cells.head)}"
        return ""
    if new_failure(cells):
        return ""
    is_all = all(check.tests is None or check.tests.failed >= (check.tests.ran or 0) for check in cells.head)
    return "the same tests fail before and now, and there are no others" if is_all else ""


def new_failure(cells: Cells) -> str:
    """Return the first failure at the head that was not there at the base."""
    starts = {check.name: check for check in cells.base or ()}
    for check in cells.head:
        start = starts.get(check.name)
        if check.passed:
            continue
        is_new = start is None or start.passed
        old_names = () if start is None or is_new else (*_failing(start), *_load_errors((start,)))
        if names := [name for name in _failing(check) if name not in old_names]:
            return f"{one_line(check.name, 80)} fails: {listed(names, 3)}"
        if errors := [name for name in _load_errors((check,)) if name not in old_names]:
            return f"{one_line(check.name, 80)} can't load {listed(errors, 3)}"
        if is_new or (start and not _failing(check) and not old_names and _last_lines(check) != _last_lines(start)):
            return f"{one_line(check.name, 80)} fails: {_last_line((check,))}"
    return ""


def red_on_both_sides(cells: Cells) -> tuple[str, ...]:
    """Return the tests that fail before and now."""
    names = [
        name
        for check, start in _red_pairs(cells)
        for name in (*_failing(check), *_load_errors((check,)))
        if name in (*_failing(start), *_load_errors((start,)))
    ]
    return tuple(dict.fromkeys(names))


def _red_pairs(cells: Cells) -> list[tuple[Check, Check]]:
    starts = {check.name: check for check in cells.base or () if not check.passed}
    return [(check, starts[check.name]) for check in cells.head if not check.passed and check.name in starts]


def is_green(cell: Cell) -> bool:
    """Return whether every check passes."""
    return all(check.passed for check in cell)


def _failing(check: Check) -> tuple[str, ...]:
    return check.tests.failing if check.tests else ()


def _load_errors(cell: Cell) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for check in cell if check.tests for name in check.tests.load_errors))


def _lines(check: Check) -> list[str]:
    output = f"{check.head}\n{check.tail}" if check.cut else check.tail or check.head
    lines = [line.strip() for line in clean(output).split("\n")]
    return [line for line in lines if line]


def _last_lines(check: Check) -> list[str]:
    return _lines(check)[-LAST_LINES:]


def _last_line(cell: Cell) -> str:
    check = next(check for check in cell if not check.passed)
    return one_line((_last_lines(check) or [check.ending])[-1], 120)


def _was(names: Sequence[str]) -> str:
    return "was" if len(names) == 1 else "were"
