"""A run whose checks pass only because tests were changed isn't done, without any option."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CODE = "def add(a, b):\n    return a - b\n"
TESTS = """import unittest
from calc import add, sign

class Adding(unittest.TestCase):
    def test_two(self):
        self.assertEqual(add(2, 2), 4)

    def test_zero(self):
        self.assertEqual(add(0, 0), 0)

    def test_sign(self):
        self.assertEqual(sign(-3), "-")
"""
FIX = "sed -i 's/a - b/a + b/' calc.py"
EDIT = "sed -i 's/2), 4/2), 0/' test_calc.py"
OTHER = "printf 'import unittest\\nclass A(unittest.TestCase):\\n def test_a(self): pass\\n' > test_a.py"
MINUS = 'sed -i \'s/return "-" if a < 0/return "minus" if a < 0/\' calc.py'
CHECK = "python3 -B -m unittest"


@pytest.fixture
def project(repository: Path, git: Callable[..., str]) -> Path:
    (repository / "calc.py").write_text(f'{CODE}\ndef sign(a):\n    return "-" if a < 0 else "+"\n')
    (repository / "test_calc.py").write_text(TESTS)
    git("add", "-A")
    git("commit", "-qm", "project")
    return repository


@pytest.fixture
def loop(ralph: Callable[..., Any], agent: Callable[..., str], project: Path) -> Callable[..., Any]:
    def run(script: str, *words: str) -> Any:
        return ralph(
            "loop", "Make the tests pass", "--check", CHECK, "--agent", agent(f"{script}\necho COMPLETE"), *words
        )

    return run


def last_line(done: Any) -> str:
    return str(done.err.strip().splitlines()[-1])


@pytest.mark.parametrize(
    "cheat",
    [
        EDIT,
        "sed -i '/test_two/i \\    @unittest.skip(\"later\")' test_calc.py",
        "sed -i '/test_two/i \\    @unittest.expectedFailure' test_calc.py",
        f"git rm -q test_calc.py; {OTHER}",
        f"git mv test_calc.py calc_tests.txt; {OTHER}",
    ],
    ids=["edited", "skipped", "expected to fail", "replaced", "renamed"],
)
@pytest.mark.parametrize("where", [(), ("--worktree",)], ids=["in the tree", "in a worktree"])
def test_a_red_test_that_was_changed_instead_of_fixed_blocks_the_run(
    loop: Callable[..., Any], cheat: str, where: tuple[str, ...]
) -> None:
    done = loop(cheat, *where)
    assert done.code == 1, done.err
    assert "blocked after 3 iterations: the checks pass only with changed tests" in last_line(done)
    assert "test_two was red at the start); to accept them: ralph resume" in last_line(done)
    assert "test_two was red before you began. With the tests as they were at the start, it still fails" in done.err


def test_a_fix_that_follows_the_refusal_ends_the_run(loop: Callable[..., Any]) -> None:
    done = loop(f"if [ $RALPH_ITERATION = 1 ]; then {EDIT}; else git checkout -q test_calc.py; {FIX}; fi")
    assert done.code == 0, done.err
    assert last_line(done).startswith("ralph: done after 2 iterations")


def test_new_tests_beside_an_honest_fix_cost_one_run_and_say_nothing(loop: Callable[..., Any]) -> None:
    more = "printf '\\n    def test_more(self):\\n        self.assertEqual(add(1, 2), 3)\\n' >> test_calc.py"
    done = loop(f"{FIX}; {more}")
    assert done.code == 0, done.err
    assert last_line(done).count(";") == 0, last_line(done)


def test_a_weakened_test_is_asked_about_once_and_then_said(loop: Callable[..., Any]) -> None:
    weaken = f"{MINUS}; sed -i 's/assertEqual(sign(-3), \"-\")/assertTrue(sign(-3))/' test_calc.py"
    done = loop(f"{FIX}; {weaken}")
    assert done.code == 0, done.err
    assert "If the goal asks for that, claim again" in done.err
    assert "done after 2 iterations" in last_line(done)
    assert ", but test_calc.Adding.test_sign, as it was, fails now, and as it is accepts the old code" in last_line(
        done
    )


def test_behaviour_that_was_changed_on_purpose_is_only_mentioned(loop: Callable[..., Any]) -> None:
    change = f'{MINUS}; sed -i \'s/sign(-3), "-"/sign(-3), "minus"/\' test_calc.py'
    done = loop(f"{FIX}; {change}")
    assert done.code == 0, done.err
    assert "done after 1 iteration" in last_line(done)
    assert "; 1 test was changed to fit: test_calc.Adding.test_sign" in last_line(done)


def test_goals_about_tests_may_change_them(loop: Callable[..., Any]) -> None:
    done = loop(EDIT, "--tests", "may-change")
    assert done.code == 0, done.err
    assert (
        ", but the checks pass only with changed tests (test_calc.Adding.test_two was red at the start)"
        in last_line(done)
    )


def test_a_claim_that_touched_no_test_costs_nothing(loop: Callable[..., Any], project: Path) -> None:
    done = loop(FIX)
    assert done.code == 0, done.err
    assert "tests as they were at the start" not in done.err


def test_nothing_is_compared_without_a_baseline_and_that_is_said(loop: Callable[..., Any]) -> None:
    done = loop(EDIT, "--no-baseline")
    assert done.code == 0, done.err
    assert "; could not compare the tests: no check ran before the first turn" in last_line(done)


def test_other_presets_ask_only_if_told(ralph: Callable[..., Any], agent: Callable[..., str], project: Path) -> None:
    words = ("run", "x", "--check", CHECK, "--agent", agent(f"{EDIT}\necho '<response>DONE</response>'"), "-m", "4")
    assert ralph(*words).code == 0
    (project / "test_calc.py").write_text(TESTS)
    told = ralph(*words, "--tests", "as-they-were", "--baseline")
    assert told.code == 1, told.err
    assert "the checks pass only with changed tests" in last_line(told)


REPAIR = TESTS.replace("add(2, 2), 4", "add(2, 2), 0")
BLOCKED = "echo '<response>BLOCKED: 2 - 2 is 0, but test_two asks for 4</response>'"


def test_a_person_who_accepts_the_changed_tests_ends_the_run_without_a_turn(
    ralph: Callable[..., Any], loop: Callable[..., Any], project: Path
) -> None:
    blocked = loop(f'{EDIT}; mkdir -p .ralph; echo \'{{"tests": "may-change"}}\' > .ralph/settings.json')
    assert "blocked after 3 iterations" in last_line(blocked), "settings that the agent wrote don't count"
    command = last_line(blocked).partition("to accept them: ")[2].rpartition(" (")[0].split()
    assert command[:2] == ["ralph", "resume"]
    result = ralph(*command[1:])
    assert result.code == 0, result.err
    assert "ralph: done after 3 iterations" in last_line(result)
    assert "a person accepted the test files as they are" in last_line(result)
    assert ", but the checks pass only with changed tests" in last_line(result)
    assert ralph("resume", command[2]).code == 2, "it is done"


@pytest.mark.parametrize("protect", [(), ("--protect", "test_*.py")], ids=["test", "protected test"])
def test_a_person_repairs_the_test_that_blocked_the_agent(
    ralph: Callable[..., Any], loop: Callable[..., Any], project: Path, protect: tuple[str, ...]
) -> None:
    blocked = loop(BLOCKED, *protect)
    assert "blocked after 1 iteration: 2 - 2 is 0, but test_two asks for 4" in last_line(blocked)
    (project / "test_calc.py").write_text(REPAIR)
    result = ralph("resume", "--tests", "may-change")
    assert result.code == 0, result.err
    assert "done after 1 iteration: 1 check passes (1 was red before) and a person accepted" in last_line(result)
    assert "test_calc.Adding.test_two was red at the start" in last_line(result)
    assert (project / "test_calc.py").read_text() == REPAIR


def test_an_accepted_test_that_still_fails_is_left_to_the_agent(
    ralph: Callable[..., Any], loop: Callable[..., Any], project: Path
) -> None:
    loop(f"if [ -e repaired ]; then {FIX}; else {BLOCKED}; fi")
    (project / "repaired").touch()
    (project / "test_calc.py").write_text(TESTS.replace("add(2, 2), 4", "add(2, 3), 5"))
    result = ralph("resume", "--tests", "may-change")
    assert result.code == 0, result.err
    assert "done after 2 iterations" in last_line(result)


def test_a_protected_file_that_a_person_changed_is_announced_before_it_is_restored(
    ralph: Callable[..., Any], loop: Callable[..., Any], project: Path
) -> None:
    loop(f"if [ -e resumed ]; then {FIX}; else {BLOCKED}; fi", "--protect", "test_*.py")
    (project / "resumed").touch()
    (project / "test_calc.py").write_text(REPAIR)
    result = ralph("resume")
    notice = "test_calc.py was changed since the run ended: it will be restored; to keep it: --tests may-change"
    assert result.code == 0, result.err
    assert result.err.index(notice) < result.err.index("iteration 2")
    assert "the agent changed" not in result.err
    assert (project / "test_calc.py").read_text() == TESTS


def test_accept_repeats_what_became_of_weakened_tests_and_refuses_nothing(
    ralph: Callable[..., Any], loop: Callable[..., Any]
) -> None:
    weaken = f"{MINUS}; sed -i 's/assertEqual(sign(-3), \"-\")/assertTrue(sign(-3))/' test_calc.py"
    assert loop(f"{FIX}; {weaken}", "--worktree").code == 0
    accepted = ralph("accept")
    assert accepted.code == 0, accepted.err
    assert "Changed tests: test_calc.Adding.test_sign, as it was, fails now" in accepted.out


def test_accept_refuses_tests_that_were_changed_instead_of_fixed_until_a_person_accepts_them(
    ralph: Callable[..., Any], loop: Callable[..., Any], project: Path
) -> None:
    result = loop(EDIT, "--worktree", "--no-baseline")
    assert result.code == 0, result.err
    refused = ralph("accept")
    assert refused.code == 1, refused.err
    assert "the checks pass only with changed tests (test_calc.Adding.test_two was red at the start)" in refused.err
    assert (project / "test_calc.py").read_text() == TESTS, "nothing was changed"
    command = refused.err.partition("to accept them: ")[2].partition(";")[0].split()
    resumed = ralph(*command[1:])
    assert resumed.code == 0, resumed.err
    accepted = ralph("accept")
    assert accepted.code == 0, accepted.err
    assert "Changed tests: the checks pass only with changed tests" in accepted.out


def test_accept_runs_each_check_once_if_no_test_changed(
    ralph: Callable[..., Any], loop: Callable[..., Any], tmp_path: Path
) -> None:
    count = tmp_path / "count"
    assert loop(FIX, "--worktree", "--check", f"echo >> {count}").code == 0
    before = len(count.read_text())
    accepted = ralph("accept")
    assert accepted.code == 0, accepted.err
    assert len(count.read_text()) == before + 1
    assert "Changed tests" not in accepted.out
