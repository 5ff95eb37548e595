"""What a check's test runner reports counts, not only its exit code: failed tests, no tests, fewer tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Prompts = Callable[..., list[str]]

UNITTEST = "python3 -m unittest -q"
DONE = "echo COMPLETE"
FIX = "echo 'def add(a, b): return a + b' > calc.py"
TESTS = """\
import unittest
import calc

class TestCalc(unittest.TestCase):
    def test_add(self):
        self.assertEqual(calc.add(1, 2), 3)

    def test_sub(self):
        self.assertEqual(calc.add(3, -2), 1)
"""
ONE_TEST = "import unittest\n\nclass TestCalc(unittest.TestCase):\n    def test_nothing(self): pass\n"
NO_TEST = "import unittest\n"


@pytest.fixture
def project(workspace: Path) -> Path:
    """A folder with two red tests, and scripts that call them."""
    (workspace / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (workspace / "test_calc.py").write_text(TESTS)
    (workspace / "check.sh").write_text(f"{UNITTEST}\n")
    return workspace


def test_a_program_that_ends_before_its_tests_does_not_pass(
    ralph: Ralph, agent: Agent, project: Path, prompts: Prompts
) -> None:
    cheat = agent(f"echo 'import os; os._exit(0)' > calc.py; echo $N; {DONE}")
    result = ralph("loop", "t", "--check", UNITTEST, "-m", "2", "--agent", cheat)
    why = "exits with 0, but no longer reports any tests (2 before)"
    assert result.code == 1
    assert f"still failing: {UNITTEST} {why}" in result.err
    assert f"{UNITTEST}: FAIL — {why}" in prompts()[1]


def test_a_check_without_any_test_left_does_not_pass(ralph: Ralph, agent: Agent, project: Path) -> None:
    (project / "none.py").write_text(NO_TEST)
    cheat = agent(f"sed -i 's/-q/-q none/' check.sh; {DONE}")
    result = ralph("loop", "t", "--check", "sh check.sh", "-m", "1", "--agent", cheat)
    assert result.code == 1
    assert "ran 0 tests (2 before)" in result.err


def test_failed_tests_count_although_the_check_exits_with_0(ralph: Ralph, agent: Agent, project: Path) -> None:
    cheat = agent(f"echo true >> check.sh; {DONE}")
    result = ralph("loop", "t", "--check", "sh check.sh", "-m", "1", "--agent", cheat)
    assert result.code == 1
    why = "exits with 0, but reports 2 failed (test_calc.TestCalc.test_add, test_calc.TestCalc.test_sub)"
    assert f"sh check.sh {why}" in result.err


def test_a_check_that_hid_failures_at_the_start_goes_by_its_exit_code(
    ralph: Ralph, agent: Agent, project: Path
) -> None:
    (project / "check.sh").write_text(f"{UNITTEST}; test -e new\n")
    result = ralph("loop", "t", "--check", "sh check.sh; true", "-m", "2", "--agent", agent(f"touch new; {DONE}"))
    assert result.code == 0
    assert result.err.count("exits with 0, but reports 2 failed") == 1
    assert "its exit code counts" in result.err


def test_the_count_is_remembered_by_a_resumed_run(ralph: Ralph, agent: Agent, project: Path) -> None:
    idle = agent("echo nothing")
    assert ralph("loop", "t", "--check", UNITTEST, "-m", "1", "--agent", idle).code == 1
    agent(f"echo 'import os; os._exit(0)' > calc.py; {DONE}")
    resumed = ralph("resume", "-m", "+1")
    assert resumed.code == 1
    assert "no longer reports any tests (2 before)" in resumed.err


def test_fewer_tests_are_in_the_last_line(ralph: Ralph, agent: Agent, project: Path) -> None:
    cut = agent(f"{FIX}; sed -i '/test_sub/,$d' test_calc.py; {DONE}")
    result = ralph("loop", "t", "--check", UNITTEST, "-m", "1", "--agent", cut)
    assert result.code == 0
    assert "; 1 test ran, 2 before" in result.err


def test_as_many_tests_are_not_mentioned(ralph: Ralph, agent: Agent, project: Path) -> None:
    result = ralph("loop", "t", "--check", UNITTEST, "-m", "1", "--agent", agent(f"{FIX}; {DONE}"))
    assert result.code == 0
    assert "tests ran" not in result.err


def test_no_test_at_all_verifies_nothing(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    (workspace / "none.py").write_text(NO_TEST)
    # Python 3.12 and later end with 5 if no test ran.
    result = ralph(
        "loop",
        "t",
        "--check",
        "python3 -m unittest none || test $? = 5",
        "-m",
        "1",
        "--agent",
        agent(f"touch a; {DONE}"),
    )
    assert result.code == 0
    assert "done (unverified)" in result.err
    assert "0 tests ran" in result.err
    assert "no check or tasks file was given" not in result.err


def test_an_unknown_runner_counts_by_its_exit_code(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    result = ralph("loop", "t", "--check", "test -e a", "-m", "1", "--agent", agent(f"touch a; {DONE}"))
    assert (result.code, "(unverified)" in result.err) == (0, False)
