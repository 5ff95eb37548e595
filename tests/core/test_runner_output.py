"""What each test runner reports, read from recorded outputs.

`runner_outputs/RUNNER/SCENARIO-VERSION.txt` was printed by that version of the runner, except files whose first line or
name says that they were written from the documentation. Paths are shortened. A row below holds for all versions.
"""

from pathlib import Path

import pytest

from ralph.core.runner_output import MAX_NAMES, ReportedTests, read_tests

OUTPUTS = Path(__file__).parent / "runner_outputs"
Row = tuple[int | None, int, int, tuple[str, ...], tuple[str, ...]] | None

PYTEST = ("tests/test_calc.py::test_sub", "tests/test_calc.py::test_div", "tests/test_calc.py::TestCart::test_total")
UNITTEST = ("test_ut.TestCalc.test_error", "test_ut.TestCalc.test_params", "test_ut.TestCalc.test_sub")
JEST = tuple(f"red/calc.test.js › {name}" for name in ("subtracts", "Cart › total > all", "Cart › divides 0"))
VITEST = tuple(f"red/calc.test.js > {name}" for name in ("subtracts", "Cart > total > all", "Cart > divides 0"))
MOCHA = ("subtracts", "Cart > totals: all", "Cart > divides 0")
NODE = ("subtracts", "totals # all", "divides 0", "child")
NODE_SPEC = tuple(f"red/calc.test.mjs > {name}" for name in NODE)
GO = ("example.com/x/a.TestSub", "example.com/x/a.TestDiv")
CARGO = ("tests::subtracts", "integration", "src/lib.rs - add")
RSPEC = ("red/calc_spec.rb > Calc subtracts", "red/calc_spec.rb > Calc divides 0")
PHPUNIT = ("CalcTest::testError", "CalcTest::testSub", "CalcTest::testDiv")
SUREFIRE = ("x.CalcTest.fails", "x.CalcTest.subtracts", "x.CalcTest.divides")

NO_TESTS: Row = (0, 0, 0, (), ())
EXPECTED: dict[str, dict[str, Row]] = {  # tests that ran, failed, were skipped; names of failing ones; load errors
    "pytest": {
        **dict.fromkeys(
            ("red", "red_quiet", "red_verbose", "red_xdist", "red_colour", "red_colour_quiet", "red_short"),
            (6, 3, 1, PYTEST, ()),
        ),
        "red_rn": (6, 3, 1, ("test_sub", "test_div", "TestCart.test_total"), ()),
        **dict.fromkeys(("green", "green_quiet", "green_xdist"), (2, 0, 0, (), ())),
        **dict.fromkeys(("zero", "zero_deselected", "missing_path"), NO_TESTS),
        "only_skipped": (0, 0, 1, (), ()),
        **dict.fromkeys(("load_error", "load_error_quiet"), (0, 1, 0, (), ("broken/test_broken.py",))),
        "load_error_continue": (1, 1, 0, (), ("broken/test_broken.py",)),
        "conftest_error": (None, 0, 0, (), ("conftest.py",)),
        "setup_error": (2, 1, 0, ("setup/test_fix.py::test_uses",), ()),
        "crash": None,
        "crash_xdist": (2, 1, 0, ("crash/test_crash.py::test_exit",), ()),
        "several": (8, 3, 1, PYTEST, ()),
    },
    "unittest": {
        **dict.fromkeys(("red", "red_quiet", "red_verbose"), (5, 3, 1, UNITTEST, ())),
        "red_file": (5, 3, 1, tuple(name.replace("test_ut", "__main__") for name in UNITTEST), ()),
        "green": (2, 0, 0, (), ()),
        "zero": NO_TESTS,
        "only_skipped": (0, 0, 1, (), ()),
        "load_error": (2, 1, 0, (), ("test_bad",)),
        "crash": None,
        "several": (7, 3, 1, UNITTEST, ()),
    },
    "jest": {
        **dict.fromkeys(("red", "red_colour", "red_silent"), (5, 3, 2, JEST, ())),
        **dict.fromkeys(("red_verbose", "several"), (7, 3, 2, JEST, ())),
        "red_named": (1, 0, 6, (), ()),
        "green": (2, 0, 0, (), ()),
        **dict.fromkeys(("zero", "zero_fail"), NO_TESTS),
        "only_skipped": (0, 0, 1, (), ()),
        "load_error": (1, 0, 0, (), ("broken/bad.test.js",)),
        "empty_suite": (0, 0, 0, (), ("ex/e.test.js",)),
        "crash": None,
    },
    "vitest": {
        **dict.fromkeys(("red", "red_verbose", "red_dot", "red_colour"), (5, 3, 2, VITEST, ())),
        "red_tap": (5, 3, 2, ("subtracts", "total > all", "divides 0"), ()),
        "junit": (5, 3, 2, tuple(name.replace(" > ", ".", 1) for name in VITEST), ()),
        "green": (2, 0, 0, (), ()),
        **dict.fromkeys(("zero", "zero_fail"), NO_TESTS),
        "only_skipped": (0, 0, 1, (), ()),
        "load_error": (2, 0, 0, (), ("bad/bad.test.js",)),
        "empty_suite": (0, 0, 0, (), ("empty/e.test.js",)),
        "crash": (1, 1, 0, ("crash/c.test.js > a",), ()),
        "several": (7, 3, 2, VITEST, ()),
    },
    "mocha": {
        **dict.fromkeys(("red", "red_colour", "red_dot", "red_min"), (5, 3, 1, MOCHA, ())),
        "red_tap": (5, 3, 1, tuple(name.replace(" > ", " ") for name in MOCHA), ()),
        "green": (2, 0, 0, (), ()),
        "zero": NO_TESTS,
        "only_skipped": (0, 0, 1, (), ()),
        "load_error": (None, 0, 0, (), ("bad.js",)),
        "hook_error": (2, 1, 0, ('Shop > "before all" hook for "a"',), ()),
        "crash": None,
        "several": (7, 3, 1, MOCHA, ()),
    },
    "node": {  # a test with subtests counts in the reporter spec, but not in TAP
        **dict.fromkeys(("red_spec", "red_colour"), (7, 5, 2, NODE_SPEC, ())),
        "red_absolute": (7, 5, 2, tuple(f"calc.test.mjs > {name}" for name in NODE), ()),
        "red_tap": (6, 4, 2, NODE, ()),
        **dict.fromkeys(("green_spec", "green_tap"), (2, 0, 0, (), ())),
        **dict.fromkeys(("zero", "crash"), NO_TESTS),
        "only_skipped": (0, 0, 1, (), ()),
        **dict.fromkeys(("load_error_spec", "load_error_tap"), (2, 1, 0, (), ("bad/b.test.mjs",))),
        "load_error_absolute": (2, 1, 0, (), ("b.test.mjs",)),
        "several": (8, 4, 2, NODE, ()),
    },
    "tap": {"red": (3, 1, 1, ("subtracts",), ()), "zero": NO_TESTS},
    "go": {  # without -v, packages are counted
        "red": (2, 2, 0, GO, ()),
        **dict.fromkeys(("red_verbose", "red_json"), (5, 2, 1, GO, ())),
        "green": (1, 0, 0, (), ()),
        **dict.fromkeys(("green_verbose", "green_json"), (2, 0, 0, (), ())),
        **dict.fromkeys(("zero", "zero_run", "zero_run_verbose"), NO_TESTS),
        "load_error": (1, 0, 0, (), ("example.com/x/broken",)),
        "load_error_json": (2, 0, 0, (), ("example.com/x/broken",)),
        "load_error_build": (1, 0, 0, (), ("example.com/x/broken",)),
        **dict.fromkeys(("load_error_vet", "missing"), None),
        **dict.fromkeys(("crash", "crash_verbose"), (1, 1, 0, ("example.com/x/crash.TestX",), ())),
        "panic": (1, 1, 0, ("example.com/x/pan.TestPanics",), ()),
        "several": (4, 2, 0, GO, ()),
    },
    "cargo": {
        **dict.fromkeys(("red", "red_quiet", "red_colour"), (6, 3, 1, CARGO, ())),
        "red_first": (3, 1, 1, CARGO[:1], ()),
        "red_nextest": (3, 1, 1, ("red tests::subtracts",), ()),
        "green": (2, 0, 0, (), ()),
        **dict.fromkeys(("zero", "zero_named", "crash"), NO_TESTS),
        "only_skipped": (0, 0, 1, (), ()),
        "load_error": (None, 0, 0, (), ("bad",)),
        "several": (8, 3, 1, CARGO, ()),
    },
    "rspec": {
        **dict.fromkeys(("red", "red_documentation", "red_colour"), (4, 2, 2, RSPEC, ())),
        "green": (2, 0, 0, (), ()),
        "zero": NO_TESTS,
        "only_skipped": (0, 0, 1, (), ()),
        "load_error": (0, 0, 0, (), ("bad/bad_spec.rb",)),
        "crash": None,
        "several": (6, 2, 2, RSPEC, ()),
    },
    "phpunit": {
        **dict.fromkeys(("red", "red_colour"), (7, 4, 2, PHPUNIT, ())),
        "red_issues": (5, 3, 1, PHPUNIT, ()),
        "red_testdox": (7, 4, 2, (), ()),  # it prints no names of methods
        **dict.fromkeys(("green", "green_issues"), (2, 0, 0, (), ())),
        "zero": NO_TESTS,
        "only_skipped": (0, 0, 1, (), ()),
        "load_error": (None, 0, 0, (), ("BadTest.php",)),
        "crash": None,
        "several": (9, 4, 2, PHPUNIT, ()),
    },
    "surefire": {
        **dict.fromkeys(("red", "red_quiet", "red_colour"), (5, 3, 1, SUREFIRE, ())),
        "green": (2, 0, 0, (), ()),
        **dict.fromkeys(("zero", "zero_named", "crash"), NO_TESTS),
        "load_error": (None, 0, 0, (), ("BadTest.java",)),
        "several": (7, 3, 1, SUREFIRE, ()),
    },
    "gradle": {"red": (3, 1, 0, ("ATest.two",), ())},
    "ctest": {"red": (3, 1, 0, ("two",), ())},
    "dotnet": {
        "red": (4, 2, 1, ("Calc.Tests.CalcTest.Subtracts", "Calc.Tests.CalcTest.Divides"), ()),
        "red_terminal": (3, 1, 1, ("Calc.Tests.CalcTest.Subtracts",), ()),
        "zero": NO_TESTS,
        "load_error": (None, 0, 0, (), ("CalcTest.cs",)),
        "several": (5, 1, 0, ("B.Tests.BTest.Two",), ()),
    },
    "junit": {
        "red_pytest": (
            5,
            3,
            2,
            ("tests.test_calc.test_sub", "tests.test_calc.test_div", "tests.test_calc.TestCart.test_total"),
            (),
        )
    },
}
FILES = sorted(path.relative_to(OUTPUTS) for path in OUTPUTS.glob("*/*.txt"))


def test_every_recorded_output_has_an_expectation() -> None:
    recorded = {(path.parent.name, path.name.removesuffix(".txt").partition("-")[0]) for path in FILES}
    assert recorded == {(runner, scenario) for runner, rows in EXPECTED.items() for scenario in rows}


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_recorded_output_is_read(path: Path) -> None:
    runner, scenario = path.parent.name, path.name.removesuffix(".txt").partition("-")[0]
    report = read_tests((OUTPUTS / path).read_text())
    row = report and (report.ran, report.failed, report.skipped, report.failing, report.load_errors)
    expected = EXPECTED[runner][scenario]
    if row and expected and "xdist" in scenario:  # in the order in which its workers end
        row, expected = (
            (*row[:3], tuple(sorted(row[3])), row[4]),
            (*expected[:3], tuple(sorted(expected[3])), expected[4]),
        )
    assert row == expected


def test_counts_of_several_runners_are_added() -> None:
    pytest_red, jest_red, go = (
        (OUTPUTS / name).read_text()
        for name in ("pytest/red-9.0.2.txt", "jest/red-30.txt", "go/green_verbose-1.19.8.txt")
    )
    assert read_tests(f"{pytest_red}\n{jest_red}\n{go}") == ReportedTests(
        runners=("pytest", "jest", "go"), ran=13, failed=6, skipped=3, failing=(*PYTEST, *JEST)
    )


@pytest.mark.parametrize(
    "output",
    [
        "",
        "3 failed\n",
        "make: *** [test] Error 1\n",
        "All checks passed!",
        "Found 3 errors in 1 file (checked 2 source files)",
        "error[E0308]: mismatched types\n",
        "12 errors, 3 warnings, 0 informations\n",
        "✖ 3 problems (3 errors, 0 warnings)\n",
        "ok, everything is fine\nnot ok\n",
        "Tests: all of them\n",
    ],
)
def test_linters_builds_and_unknown_runners_give_no_count(output: str) -> None:
    assert read_tests(output) is None


def test_what_a_failing_test_printed_is_no_summary() -> None:
    text = (OUTPUTS / "pytest" / "red-9.0.2.txt").read_text()
    assert "4 passed in 0.1s" in text
    inner = "----- Captured stdout call -----\n7 passed in 0.12s\n=== RUN   TestX\nRan 3 tests in 0.1s\n\nOK\n"
    report = read_tests(text.replace("----- Captured stdout", f"{inner}----- Captured stderr", 1))
    assert report
    assert (report.ran, report.runners) == (6, ("pytest",))


def test_names_are_limited() -> None:
    text = "".join(f"FAILED tests/test_{number}.py::test_a - no\n" for number in range(500))
    report = read_tests(f"{text}500 failed, 1 passed in 3.10s\n")
    assert report
    assert (len(report.failing), report.failed, report.ran) == (MAX_NAMES, 500, 501)
