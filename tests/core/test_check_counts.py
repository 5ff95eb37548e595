"""Failure counts, read from real outputs of test runners, linters and type checkers.

The files in check_outputs were captured from the real tools (maven, gradle and dotnet are written from their
documentation): three tests of which one fails, or a few errors.
"""

from pathlib import Path

import pytest

from ralph.core.check_counts import FailureCount, count_failures

OUTPUTS = Path(__file__).parent / "check_outputs"
ONE_OF_THREE = FailureCount(1, 3)
EXPECTED = {
    **dict.fromkeys(("pytest", "pytest_q", "unittest", "jest", "vitest", "mocha", "node_test"), ONE_OF_THREE),
    **dict.fromkeys(("cargo_test", "ctest", "rspec", "maven", "gradle", "dotnet"), ONE_OF_THREE),
    "pytest_collection_error": None,
    "go_test": FailureCount(1, 2),
    "go_build_failed": None,
    "phpunit": FailureCount(1, 2),
    "ruff": FailureCount(4),
    "mypy": FailureCount(2),
    "pyright": FailureCount(2),
    "eslint": FailureCount(3),
    "tsc": FailureCount(2),
    "tsc_pretty": FailureCount(2),
}


def test_every_captured_output_has_an_expectation() -> None:
    assert {path.stem for path in OUTPUTS.glob("*.txt")} == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_the_summary_of_a_tool_is_read(name: str) -> None:
    assert count_failures((OUTPUTS / f"{name}.txt").read_text()) == EXPECTED[name]


@pytest.mark.parametrize(
    ("output", "count"),
    [
        ("", None),
        ("3 failed\n", None),
        ("make: *** [test] Error 1\n", None),
        ("===== 12 passed in 0.5s =====", FailureCount(0, 12)),
        ("1,203 passed, 2 skipped in 61.02s (0:01:01)", FailureCount(0, 1203)),
        ("1 failed, 2 passed, 1 error in 0.5s", FailureCount(2, 4)),
        ("2 errors in 0.5s", None),
        ("no tests ran in 0.01s", None),
        ("All checks passed!", FailureCount(0)),
        ("Success: no issues found in 12 source files", FailureCount(0)),
        ("Ran 4 tests in 0.1s\n\nOK", FailureCount(0, 4)),
        ("Ran 4 tests in 0.1s\n\nFAILED (failures=1, errors=2)", FailureCount(3, 4)),
        ("\x1b[31m1 failed\x1b[0m, \x1b[32m2 passed\x1b[0m in 0.1s", FailureCount(1, 3)),
        ("test result: ok. 3 passed; 0 failed;\ntest result: FAILED. 1 passed; 2 failed;", FailureCount(2, 6)),
        ("error[E0308]: mismatched types\ntest result: ok. 3 passed; 0 failed;", None),
        ("3 failed, 1 passed in 1s\nthen\n2 failed, 2 passed in 1s\n", FailureCount(5, 8)),
        ("ok  \tx/a\t0.1s\nok  \tx/b\t0.1s\n", FailureCount(0, 2)),
    ],
)
def test_unusual_outputs_are_counted_correctly(output: str, count: FailureCount | None) -> None:
    assert count_failures(output) == count


@pytest.mark.parametrize(
    ("now", "before", "is_better"),
    [
        (FailureCount(1, 10), FailureCount(2, 10), True),
        (FailureCount(1, 12), FailureCount(2, 10), True),
        (FailureCount(1, 9), FailureCount(2, 10), False),  # tests were removed
        (FailureCount(2, 10), FailureCount(2, 10), False),
        (FailureCount(1), FailureCount(2), True),
        (FailureCount(1), FailureCount(2, 10), True),
    ],
)
def test_fewer_failures_among_as_many_tests_are_better(
    now: FailureCount, before: FailureCount, is_better: bool
) -> None:
    assert now.is_better_than(before) is is_better
