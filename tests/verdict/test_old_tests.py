"""The tests as they were run on the code as it is, in states that git makes of both ends."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ralph.core.judgement import Cell, Cells
from ralph.core.model import Check
from ralph.core.runner_output import read_tests
from ralph.git.client import require_git
from ralph.verdict.old_tests import OldTestsResult, control_tests, find_changed_tests

Git = Callable[..., str]

CODE = "def add(a, b):\n    return a - b\n"
FIXED = "def add(a, b):\n    return a + b\n"
TEST = """import unittest
from calc import add

class Adding(unittest.TestCase):
    def test_two(self):
        self.assertEqual(add(2, 2), 4)

    def test_zero(self):
        self.assertEqual(add(0, 0), 0)
"""
TWO = TEST[TEST.index("    def test_two") : TEST.index("    def test_zero")]
MORE = "    def test_more(self):\n        self.assertEqual(add(1, 2), 3)\n"
OTHER = "import unittest\n\nclass Other(unittest.TestCase):\n    def test_it(self): pass\n"


class Project:
    """A repository whose check is `python3 -m unittest`, run in a folder of its own for each state."""

    def __init__(self, folder: Path, git: Git, tmp_path: Path) -> None:
        self.folder, self.git, self.copies, self.runs = folder, git, tmp_path / "copies", 0

    def commit(self, **files: str | None) -> str:
        for name, text in files.items():
            path = self.folder / f"{name}.py"
            path.unlink() if text is None else path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-qm", "state")
        return self.git("rev-parse", "HEAD").strip()

    def check(self, commit: str) -> Cell:
        self.runs += 1
        copy = self.copies / str(self.runs)
        self.git("worktree", "add", "-q", "--detach", str(copy), commit)
        command = (sys.executable, "-B", "-m", "unittest")
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
        return (
            Check(
                name="unittest", passed=done.returncode == 0, exit_code=done.returncode, tests=read_tests(done.stderr)
            ),
        )

    def compare(self, base: str, head: str) -> OldTestsResult:
        tests = find_changed_tests(require_git(self.folder), base, head)
        assert tests
        cells = Cells(head=self.check(head), base=self.check(base))
        result = control_tests(require_git(self.folder), tests, cells, self.check)
        self.runs -= 2  # those of the head and the base
        return result


@pytest.fixture
def project(repository: Path, git: Git, tmp_path: Path) -> Project:
    return Project(repository, git, tmp_path)


def test_code_alone_needs_no_control(project: Project) -> None:
    base = project.commit(calc=CODE, test_calc=TEST)
    head = project.commit(calc=FIXED)
    assert not find_changed_tests(require_git(project.folder), base, head)


def test_a_test_that_was_only_extended_costs_one_run(project: Project) -> None:
    base = project.commit(calc=CODE, test_calc=TEST)
    head = project.commit(
        calc=FIXED, test_calc=TEST + "\n    def test_more(self):\n        self.assertEqual(add(1, 2), 3)\n"
    )
    control = project.compare(base, head)
    assert control.finding
    assert (control.finding.kind, project.runs) == ("green", 1)


@pytest.mark.parametrize("change", ["edited", "deleted", "renamed"])
def test_a_test_that_was_red_at_the_start_is_still_red_as_it_was(project: Project, change: str) -> None:
    base = project.commit(calc=CODE, test_calc=TEST)
    edited = TEST.replace("2), 4", "2), 0")
    files = {
        "edited": {"test_calc": edited},
        "deleted": {
            "test_calc": None,
            "test_other": "import unittest\nclass Other(unittest.TestCase):\n    def test_it(self): pass\n",
        },
        "renamed": {"test_calc": None, "test_calculator": edited},
    }
    control = project.compare(base, project.commit(**files[change]))
    assert control.finding
    assert control.finding.kind == "S"
    assert control.finding.tests == ("test_calc.Adding.test_two",)
    assert project.runs == 3, "O, and its two controls"


def test_a_changed_assertion_that_the_old_code_fails_was_adapted(project: Project) -> None:
    base = project.commit(calc=FIXED, test_calc=TEST)
    head = project.commit(calc=CODE, test_calc=TEST.replace("2), 4", "2), 0"))
    control = project.compare(base, head)
    assert control.finding
    assert (control.finding.kind, project.runs) == ("adapted", 4)
    assert control.finding.text == "1 test was changed to fit: test_calc.Adding.test_two"


def test_a_widened_assertion_accepts_the_old_code_as_well(project: Project) -> None:
    base = project.commit(calc=FIXED, test_calc=TEST)
    head = project.commit(calc=CODE, test_calc=TEST.replace("assertEqual(add(2, 2), 4)", "assertIn(add(2, 2), (0, 4))"))
    control = project.compare(base, head)
    assert control.finding
    assert control.finding.kind == "weakened"
    assert control.finding.text.endswith("as it was, fails now, and as it is accepts the old code")


def test_a_test_that_is_gone_is_said_to_be_gone(project: Project) -> None:
    base = project.commit(calc=FIXED, test_calc=TEST)
    head = project.commit(
        calc=CODE, test_calc=TEST[: TEST.index("    def test_two")] + TEST[TEST.index("    def test_zero") :]
    )
    control = project.compare(base, head)
    assert control.finding
    assert control.finding.text.endswith("test_two, as it was, fails now, and is gone")


def test_old_tests_that_do_not_load_are_no_accusation(project: Project) -> None:
    base = project.commit(calc=FIXED, test_calc=TEST)
    head = project.commit(calc=FIXED.replace("add", "plus"), test_calc=TEST.replace("add", "plus"))
    control = project.compare(base, head)
    assert control.finding
    assert control.finding.kind == "load error"


@pytest.mark.parametrize("leaves_out", [True, False], ids=["leaves the red test out", "configures it"])
def test_a_project_file_that_leaves_the_red_test_out_is_no_excuse(repository: Path, git: Git, leaves_out: bool) -> None:
    def commit(pyproject: str) -> str:
        (repository / "test_calc.py").write_text(TEST)
        (repository / "pyproject.toml").write_text(pyproject)
        git("add", "-A")
        git("commit", "-qm", "state")
        return git("rev-parse", "HEAD").strip()

    def check(state: str) -> Cell:
        """Run two tests, one of them red, unless the new pyproject.toml says otherwise."""
        if git("show", f"{state}:pyproject.toml") == "new":
            tests = read_tests(f"{1 if leaves_out else 2} passed in 0.01s\n")
        else:
            tests = read_tests("FAILED test_calc.py::test_two - why\n1 failed, 1 passed in 0.01s\n")
        assert tests
        return (Check(name="pytest", passed=not tests.failed, exit_code=int(tests.failed > 0), tests=tests),)

    base, head = commit("old"), commit("new")
    tests = find_changed_tests(require_git(repository), base, head)
    control = control_tests(require_git(repository), tests, Cells(head=check(head), base=check(base)), check)
    assert control.finding
    expected = ("S", ()) if leaves_out else ("green", ("pyproject.toml",))
    assert (control.finding.kind, control.mixed) == expected


def test_without_a_test_before_there_is_nothing_to_compare(project: Project) -> None:
    base = project.commit(calc=CODE, conftest="")
    head = project.commit(calc=FIXED, conftest="x = 1\n", test_calc=TEST)
    tests = find_changed_tests(require_git(project.folder), base, head)
    assert tests.problem == "there was no test before"


def test_files_in_git_lfs_cannot_be_compared(project: Project) -> None:
    data = project.folder / "tests"
    data.mkdir()
    (data / "image.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    base = project.commit(calc=CODE, test_calc=TEST)
    (data / "image.bin").write_text("other\n")
    tests = find_changed_tests(require_git(project.folder), base, project.commit())
    assert tests.problem == "could not compare the tests: in Git LFS are tests/image.bin"
