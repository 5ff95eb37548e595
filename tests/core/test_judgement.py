"""The verdict, row by row of the tables in the guide: what the four cells show, and what follows for a claim and a
change."""

import pytest

from ralph.core.judgement import (
    Cell,
    Cells,
    ChangeEvidence,
    compare_tests,
    describe_tests,
    distrust,
    fewer_tests,
    hidden_failures,
    judge_change,
    missing_cell,
    ran_no_tests,
)
from ralph.core.model import Check, Exam, Iteration, Review, Run, Turn
from ralph.core.proof import Proof, Untested
from ralph.core.runner_output import MAX_NAMES, ReportedTests, read_tests


def check(code: int = 0, *, ran: int | None = 5, failing: str = "", runner: str = "pytest", **fields: object) -> Check:
    """The result of `pytest -q`. `failing` are names; a name with a dot is a file that could not be loaded."""
    names = failing.split()
    tests = ReportedTests(
        runners=(runner,),
        ran=ran,
        failed=len(names),
        failing=tuple(name for name in names if "." not in name),
        load_errors=tuple(name for name in names if "." in name),
    )
    return Check(name="pytest -q", passed=code == 0, exit_code=code, tests=tests, **fields)


def unknown(code: int = 0, tail: str = "") -> Check:
    return Check(name="pytest -q", passed=code == 0, exit_code=code, tail=tail)


def unnamed(code: int, tail: str) -> Check:
    """A script that counts tests as pytest does, and names none."""
    return Check(name="pytest -q", passed=code == 0, exit_code=code, tail=tail, tests=read_tests(tail))


GREEN = (check(),)
ONE_RED = (check(1, failing="test_a"),)


def test_a_check_that_can_load_its_tests_neither_before_nor_now_cannot_judge() -> None:
    before = check(2, ran=0, failing="tests/test_a.py", tail="1 error in 0.51s")
    now = check(2, ran=0, failing="tests/test_a.py", tail="1 error in 0.52s")
    judgement = judge_change(ChangeEvidence(cells=Cells(head=(now,), base=(before,))))
    assert (judgement.verdict, judgement.reasons) == (
        "could not judge",
        ("pytest -q fails before and now: tests/test_a.py",),
    )


def test_a_file_that_cannot_be_loaded_before_and_now_is_left_out_if_other_tests_ran() -> None:
    cells = Cells(head=(check(1, failing="test_a.py"),), base=(check(1, failing="test_a.py test_b"),))
    judgement = judge_change(ChangeEvidence(cells=cells))
    assert (judgement.verdict, judgement.left_out) == ("holds", ("test_a.py",))


# One check


@pytest.mark.parametrize(
    ("now", "earlier", "sentence"),
    [
        (check(failing="test_a test_b"), [], "pytest -q exits with 0, but reports 2 failed (test_a, test_b)"),
        (
            check(failing="test_a"),
            [check(1, failing="test_a")],
            "pytest -q exits with 0, but reports 1 failed (test_a)",
        ),
        (check(failing="test_a"), [check(failing="test_b")], ""),  # the check did so at the start
        (
            check(failing="test_a"),
            [check(), check(failing="test_b")],
            "pytest -q exits with 0, but reports 1 failed (test_a)",
        ),
        (check(ran=0), [check(1, ran=41)], "pytest -q ran 0 tests (41 before)"),
        (check(ran=0), [check(1, ran=41), check(1, ran=40), check(ran=0)], "pytest -q ran 0 tests (40 before)"),
        (unknown(), [check(1, ran=3)], "pytest -q exits with 0, but no longer reports any tests (3 before)"),
        (check(ran=None), [check(ran=3)], "pytest -q exits with 0, but no longer reports any tests (3 before)"),
        (unknown(), [check(1, ran=3, runner="gradle")], ""),  # it prints a count only if a test fails
        (unknown(), [check(1, ran=3, runner="surefire")], ""),
        (check(ran=0, runner="surefire"), [check(1, ran=3, runner="surefire")], "pytest -q ran 0 tests (3 before)"),
        (check(ran=0), [], ""),
        (check(ran=0), [check(ran=0)], ""),
        (check(ran=2), [check(ran=41)], ""),
        (check(1, failing="test_a"), [check()], ""),  # it is red anyway
        (unknown(), [unknown(1)], ""),
    ],
)
def test_exit_code_0_does_not_count_against_what_the_tests_say(now: Check, earlier: list[Check], sentence: str) -> None:
    finding = distrust(now, earlier)
    assert (finding.sentence if finding else "") == sentence


def test_a_check_that_hides_failures_at_the_start_is_named() -> None:
    assert hidden_failures([check(failing="test_a"), check(1, failing="test_b"), unknown(), check()]) == [
        "pytest -q exits with 0, but reports 1 failed (test_a): its exit code counts"
    ]


def test_fewer_tests_are_counted_for_the_same_runners_only() -> None:
    finding = fewer_tests([check(ran=38)], [check(1, ran=41)])
    assert finding
    assert (finding.kind, finding.text) == ("N", "38 tests ran, 41 before")
    assert fewer_tests([check(ran=41)], [check(ran=41)]) is None
    assert fewer_tests([check(ran=3, runner="go packages")], [check(ran=41, runner="go")]) is None
    assert fewer_tests([unknown()], [check(ran=41)]) is None


def test_a_run_whose_only_checks_never_ran_a_test_verifies_nothing() -> None:
    assert ran_no_tests([(check(ran=0),), (check(ran=0),)])
    assert not ran_no_tests([(check(ran=0),), (check(ran=1),)])
    assert not ran_no_tests([(check(ran=0), unknown())])
    assert not ran_no_tests([(unknown(),)])
    assert not ran_no_tests([])


def test_the_last_line_tells_how_many_tests_ran() -> None:
    def run(before: Check, after: Check) -> Run:
        return Run(id="r", baseline=(before,), iterations=(Iteration(number=1, turn=Turn(text=""), checks=(after,)),))

    assert describe_tests(run(check(1, ran=41), check(ran=38))) == "; 38 tests ran, 41 before"
    assert describe_tests(run(check(1, ran=41), check(ran=41))) == ""
    assert describe_tests(run(check(ran=0), check(ran=0))) == "; 0 tests ran"


# Tests as they were


def cells(old_tests: Cell | None, base: Cell = ONE_RED, old_code: Cell | None = None, **more: Cell) -> Cells:
    """O was run twice, and the tests as they are passed in its copy."""
    again = {"head_again": GREEN, "old_tests_again": old_tests, **more} if old_tests else more
    return Cells(head=GREEN, base=base, old_tests=old_tests, old_code=old_code, **again)


LOAD_ERROR = (check(1, ran=0, failing="tests/test_a.py"),)
SAME_LINES, OTHER_LINES = (unknown(1, "a\nb\nc\nfailed: total\n"),), (unknown(1, "a\nb\nc\nfailed: sum\n"),)
TWO_OF_TWO = (unnamed(1, "add 1: 2 is not 3\nmul 2: 0 is not 4\n2 failed in 0.02s\n"),)
ONE_OF_TWO = (unnamed(1, "mul 2: 0 is not 4\n1 failed, 1 passed in 0.01s\n"),)
ROWS = {
    "O was not asked": (cells(None), "", ""),
    "O green": (cells(GREEN), "green", "test files changed, and as they were, they pass"),
    "S": (cells(ONE_RED), "S", "the checks pass only with changed tests (test_a was red at the start)"),
    "S although others fail": (
        cells((check(1, failing="test_b test_a"),)),
        "S",
        "the checks pass only with changed tests (test_a was red at the start)",
    ),
    "S of an unknown runner": (
        cells(SAME_LINES, SAME_LINES),
        "S",
        "the checks pass only with changed tests (pytest -q was red at the start)",
    ),
    "S of a runner that names no tests, although one of two was fixed": (
        cells(ONE_OF_TWO, TWO_OF_TWO),
        "S",
        "the checks pass only with changed tests (pytest -q was red at the start)",
    ),
    "weakened, a runner that names no tests": (
        cells(ONE_OF_TWO, (unnamed(1, "sum 1: 2 is not 3\n2 failed in 0.02s\n"),), old_code=GREEN),
        "weakened",
        "pytest -q, as it was, fails now, and as it is accepts the old code",
    ),
    "weakened": (
        cells((check(1, failing="test_b"),), old_code=ONE_RED),
        "weakened",
        "test_b, as it was, fails now, and as it is accepts the old code",
    ),
    "weakened and gone": (
        cells((check(1, failing="gone"),), old_code=ONE_RED),
        "weakened",
        "gone, as it was, fails now, and is gone",
    ),
    "several weakened": (
        cells((check(1, failing="b c"),), old_code=GREEN),
        "weakened",
        "b, as it was, fails now, and as it is accepts the old code; 1 more test like it",
    ),
    "weakened beside an honest new test": (
        cells((check(1, failing="b"),), old_code=(check(1, failing="new"),)),
        "weakened",
        "b, as it was, fails now, and as it is accepts the old code",
    ),
    "weakened, unknown runner": (
        cells(OTHER_LINES, SAME_LINES, old_code=(unknown(),)),
        "weakened",
        "pytest -q, as it was, fails now, and as it is accepts the old code",
    ),
    "adapted": (
        cells((check(1, failing="b c"),), old_code=(check(1, failing="b c d"),)),
        "adapted",
        "2 tests were changed to fit: b, c",
    ),
    "adapted, unknown runner": (
        cells(OTHER_LINES, GREEN, old_code=SAME_LINES),
        "adapted",
        "1 test was changed to fit: pytest -q",
    ),
    "unknown runner, red before and with the old code": (
        cells(OTHER_LINES, SAME_LINES, old_code=SAME_LINES),
        "not comparable",
        "could not compare the tests: pytest -q doesn't name the tests that fail",
    ),
    "the old tests don't load": (
        cells(LOAD_ERROR),
        "load error",
        "the tests as they were don't load on this code: tests/test_a.py",
    ),
    "a load error is no name": (
        cells(LOAD_ERROR, base=LOAD_ERROR),
        "load error",
        "the tests as they were don't load on this code: tests/test_a.py",
    ),
    "the new tests don't load on the old code": (
        cells((check(1, failing="b"),), old_code=LOAD_ERROR),
        "not comparable",
        "could not compare the tests: as they are, they don't load on the old code: tests/test_a.py",
    ),
    "the copy is red anyway": (
        cells(ONE_RED, head_again=ONE_RED),
        "not comparable",
        "could not compare the tests: as they are now, they fail in the copy",
    ),
    "O is flaky": (
        cells(ONE_RED, old_tests_again=GREEN),
        "not comparable",
        "could not compare the tests: as they were, they failed once and then passed",
    ),
    "too many fail": (
        cells((check(1, failing="b"),), old_code=(check(1, failing=" ".join(f"t{n}" for n in range(MAX_NAMES))),)),
        "not comparable",
        "could not compare the tests: too many of them fail on the old code",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_cells_decide_what_the_tests_as_they_were_show(row: str) -> None:
    given, kind, text = ROWS[row]
    finding = compare_tests(given, is_gone=lambda test: test in ("gone", "pytest -q"))
    assert (finding.kind if finding else "", finding.text if finding else "") == (kind, text)


def test_cells_are_run_in_the_order_of_cost() -> None:
    other = (check(1, failing="test_b"),)
    assert missing_cell(Cells(head=GREEN, base=ONE_RED)) is None
    assert missing_cell(Cells(head=GREEN, old_tests=GREEN)) is None
    assert missing_cell(Cells(head=GREEN, base=ONE_RED, old_tests=other)) == "head_again"
    assert missing_cell(Cells(head=GREEN, base=ONE_RED, old_tests=other, head_again=ONE_RED)) is None
    assert missing_cell(Cells(head=GREEN, base=ONE_RED, old_tests=other, head_again=GREEN)) == "old_tests_again"
    assert missing_cell(cells(ONE_RED)) is None  # S needs no more
    assert missing_cell(cells(other)) == "old_code"
    assert missing_cell(cells(other, old_code=GREEN)) is None
    assert compare_tests(cells(other)) is None  # U is missing


# A change


def test_the_verdicts_have_their_exit_codes() -> None:
    holds = judge_change(ChangeEvidence(cells=Cells(head=GREEN, base=ONE_RED)))
    assert (holds.verdict, holds.exit_code, holds.headline) == ("holds", 0, "holds")
    refuted = judge_change(ChangeEvidence(cells=cells(ONE_RED)))
    assert (refuted.verdict, refuted.exit_code) == ("refuted", 1)
    unknown_base = judge_change(ChangeEvidence(cells=Cells(head=GREEN), problem="no common ancestor"))
    assert (unknown_base.verdict, unknown_base.exit_code, unknown_base.reasons) == (
        "could not judge",
        2,
        ("no common ancestor",),
    )


HEAD_RED = Cells(head=(check(1, failing="new"),), base=GREEN, head_again=(check(1, failing="new"),))
BOTH = check(1, failing="old")
JUDGED = {
    "red with a new failure": (ChangeEvidence(cells=HEAD_RED), "refuted", "pytest -q fails: new"),
    "red, then green": (
        ChangeEvidence(cells=Cells(head=ONE_RED, base=GREEN, head_again=GREEN)),
        "could not judge",
        "the checks failed once and passed the next time, on the same files",
    ),
    "red before as well, and one more": (
        ChangeEvidence(cells=Cells(head=(check(1, failing="old new"),), base=(BOTH,))),
        "refuted",
        "pytest -q fails: new",
    ),
    "the same red, others pass": (ChangeEvidence(cells=Cells(head=(BOTH,), base=(BOTH,))), "holds", ""),
    "the same red, no other test": (
        ChangeEvidence(cells=Cells(head=(check(1, ran=1, failing="old"),), base=(check(1, ran=1, failing="old"),))),
        "could not judge",
        "the same tests fail before and now, and there are no others",
    ),
    "nothing could start": (
        ChangeEvidence(
            cells=Cells(head=(unknown(127, "sh: pytest: not found"),), base=(unknown(127, "sh: pytest: not found"),))
        ),
        "could not judge",
        "no test could start, before and now: sh: pytest: not found",
    ),
    "only now it can't load": (
        ChangeEvidence(cells=Cells(head=LOAD_ERROR, base=GREEN)),
        "refuted",
        "pytest -q can't load tests/test_a.py",
    ),
    "F": (
        ChangeEvidence(cells=Cells(head=(check(failing="test_a"),), base=ONE_RED)),
        "refuted",
        "pytest -q exits with 0, but reports 1 failed (test_a)",
    ),
    "Z": (
        ChangeEvidence(cells=Cells(head=(check(ran=0),), base=(check(1, ran=41, failing="test_a"),))),
        "refuted",
        "pytest -q ran 0 tests (41 before)",
    ),
    "S": (
        ChangeEvidence(cells=cells(ONE_RED)),
        "refuted",
        "the checks pass only with changed tests (test_a was red at the start)",
    ),
    "S with tests that may change": (ChangeEvidence(cells=cells(ONE_RED), tests="may-change"), "holds", ""),
    "weakened": (ChangeEvidence(cells=cells((check(1, failing="b"),), old_code=GREEN)), "holds", ""),
    "protected files": (
        ChangeEvidence(cells=cells(None), protected=("tests/a.py",)),
        "refuted",
        "protected files were changed: tests/a.py",
    ),
    "exam": (ChangeEvidence(cells=cells(None), exams=(Exam("exam.py", False),)), "refuted", "the exam fails: exam.py"),
    "review": (
        ChangeEvidence(cells=cells(None), reviews=(Review("r", False, changes="handle 0"),)),
        "refuted",
        "a review asks for changes: handle 0",
    ),
    "canary": (
        ChangeEvidence(cells=cells(None), canary="the checks don't test the copy"),
        "could not judge",
        "the checks don't test the copy",
    ),
    "F before S": (
        ChangeEvidence(
            cells=Cells(
                head=(check(failing="x"),), base=ONE_RED, old_tests=ONE_RED, head_again=GREEN, old_tests_again=ONE_RED
            )
        ),
        "refuted",
        "pytest -q exits with 0, but reports 1 failed (x)",
    ),
}


@pytest.mark.parametrize("row", JUDGED)
def test_a_change_is_judged_by_its_evidence(row: str) -> None:
    evidence, verdict, reason = JUDGED[row]
    judgement = judge_change(evidence)
    assert (judgement.verdict, "; ".join(judgement.reasons)) == (verdict, reason)


def test_what_a_person_should_look_at_is_no_refutation() -> None:
    weakened = judge_change(ChangeEvidence(cells=cells((check(1, failing="b"),), old_code=GREEN)))
    assert weakened.headline == "holds, but look: b, as it was, fails now, and as it is accepts the old code"
    may_change = judge_change(ChangeEvidence(cells=cells(ONE_RED), tests="may-change"))
    assert may_change.looks == ("the checks pass only with changed tests (test_a was red at the start)",)


def test_notes_do_not_change_the_verdict() -> None:
    adapted = cells((check(1, failing="b"),), base=(check(1, ran=9, failing="a"),), old_code=(check(1, failing="b"),))
    proof = Proof(verdict="untested", untested=(Untested("calc.py:3 in add"),))
    judgement = judge_change(
        ChangeEvidence(cells=adapted, proof=proof, reviews=(Review("r", False, problem="no answer"),))
    )
    assert judgement.verdict == "holds"
    assert judgement.notes == (
        "5 tests ran, 9 before",
        "1 test was changed to fit: b",
        "not reviewed: no answer",
        "no check notices if these are undone: calc.py:3 in add",
    )


def test_a_change_that_nothing_asked_for_proves_little() -> None:
    judgement = judge_change(ChangeEvidence(cells=Cells(head=GREEN, base=GREEN)))
    assert judgement.verdict == "holds"
    assert "prove little" in judgement.notes[0]


def test_tests_that_fail_before_and_now_are_left_out_and_named() -> None:
    judgement = judge_change(ChangeEvidence(cells=Cells(head=(BOTH,), base=(BOTH,))))
    assert judgement.left_out == ("old",)
    assert judgement.notes[0] == "left out 1 test that fails here before and now: old"
