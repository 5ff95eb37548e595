"""`ralph judge`: what is judged against what, by which checks, what it says, and that it changes nothing here."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Result

from ralph import judge
from ralph.errors import UserError

Ralph = Callable[..., Result]
Git = Callable[..., str]

COMMAND = (sys.executable, "-m", "ralph")
CHECK = ("--check", "python3 -B -m unittest -q")
WRONG = "def add(a, b):\n    return a - b\n"
RIGHT = "def add(a, b):\n    return a + b\n"
TEST = """import unittest
from calc import add

class Adding(unittest.TestCase):
    def test_two(self):
        self.assertEqual(add(2, 2), 4)

    def test_zero(self):
        self.assertEqual(add(0, 0), 0)
"""
MORE = """import unittest
from calc import add

class More(unittest.TestCase):
    def test_more(self):
        self.assertEqual(add(1, 2), 3)
"""
CHEAT = TEST.replace(", 4)", ", 0)")


class Project:
    """A repository whose tests are run by unittest."""

    def __init__(self, folder: Path, git: Git) -> None:
        self.folder, self.git = folder, git

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(text)

    def commit(self, **files: str) -> str:
        self.write(**files)
        self.git("add", "-A")
        self.git("commit", "-qm", "state")
        return self.git("rev-parse", "HEAD").strip()

    def state(self) -> tuple[str, str, str, list[str]]:
        """Return what nobody may change: files, index, refs, branches."""
        status = self.git("status", "--porcelain=v2", "--branch", "--ignored")
        return status, self.git("diff"), self.git("diff", "--cached"), self.git("for-each-ref").splitlines()


@pytest.fixture
def project(repository: Path, git: Git) -> Project:
    """Return a project whose test is red on the default branch."""
    project = Project(repository, git)
    project.commit(calc=WRONG, test_calc=TEST)
    return project


# What is judged against what


def test_on_the_default_branch_what_is_not_committed_is_judged(project: Project, ralph: Ralph) -> None:
    project.write(calc=RIGHT, test_more=MORE)
    before = project.state()
    result = ralph("judge", *CHECK)
    assert (result.code, result.err) == (0, "")
    head = project.git("rev-parse", "--short=7", "HEAD").strip()
    assert result.out.splitlines()[0] == f"judging what is not committed, since HEAD ({head}): 2 files"
    assert "┃ holds\n" in result.out
    assert "✗ 1 of 2" in result.out
    assert "✓ 3" in result.out
    assert project.state() == before
    assert not (project.folder / ".ralph").exists()


def test_a_branch_is_judged_since_it_left_the_default_branch(project: Project, ralph: Ralph) -> None:
    project.git("switch", "-qc", "feature")
    project.commit(calc=RIGHT)
    project.git("switch", "-q", "main")
    project.commit(other="x = 1\n")
    project.git("switch", "-q", "feature")
    result = ralph("judge", *CHECK)
    assert result.code == 0
    assert result.out.startswith("judging feature, since main (")
    assert "): 1 file\n" in result.out
    project.write(more="y = 2\n")
    assert "judging feature and what is not committed, since main (" in ralph("judge", *CHECK).out


def test_a_word_is_the_base_and_two_dots_are_exactly_these(project: Project, ralph: Ralph) -> None:
    project.commit(calc=RIGHT)
    project.commit(other="x = 1\n")
    assert "since HEAD~2" in ralph("judge", "HEAD~2", *CHECK).out
    assert "judging HEAD~1 (" in ralph("judge", "HEAD~2..HEAD~1", *CHECK).out
    elsewhere = ralph("judge", "HEAD~2", "--head", "HEAD~1", *CHECK)
    assert "judging HEAD~1 (" in elsewhere.out
    assert "since HEAD~2" in elsewhere.out


def test_three_dots_start_where_the_branches_parted(project: Project, ralph: Ralph) -> None:
    project.git("switch", "-qc", "feature")
    project.commit(calc=RIGHT)
    project.git("switch", "-q", "main")
    project.commit(other="x = 1\n")
    assert ": 1 file\n" in ralph("judge", "main...feature", *CHECK).out
    assert ": 2 files\n" in ralph("judge", "main..feature", *CHECK).out


def test_a_run_is_judged_by_its_own_checks(project: Project, ralph: Ralph, agent: Callable[..., str]) -> None:
    agent("printf 'def add(a, b):\\n    return a + b\\n' > calc.py; echo '<promise>COMPLETE</promise>'; echo COMPLETE")
    assert ralph("loop", "fix it", "--agent", "fake-agent", *CHECK).code == 0
    run = next((project.folder / ".ralph" / "runs").iterdir()).name
    result = ralph("judge", run[-4:])
    assert result.code == 0, result.err
    assert result.out.startswith(f"judging run {run}, since its start (")


def test_a_folder_of_the_repository_is_judged_there(project: Project, ralph: Ralph) -> None:
    inner = project.folder / "inner"
    inner.mkdir()
    (inner / "calc.py").write_text(WRONG)
    (inner / "test_calc.py").write_text(TEST)
    project.commit()
    (inner / "calc.py").write_text(RIGHT)
    assert ralph("judge", *CHECK, cwd=inner).code == 0
    (inner / "calc.py").write_text(WRONG)
    (inner / "test_calc.py").write_text(CHEAT)
    assert ralph("judge", *CHECK, cwd=inner).code == 1


# The verdict


def test_a_red_test_that_was_edited_refutes_and_is_named(project: Project, ralph: Ralph) -> None:
    project.write(test_calc=CHEAT)
    result = ralph("judge", *CHECK)
    assert result.code == 1
    assert "┃ because: the checks pass only with changed tests (test_calc.Adding.test_two was red" in result.out
    assert any("with the tests as they were" in line and "✗ test_two" in line for line in result.out.splitlines())
    assert len(result.out.splitlines()) <= 15
    reported = ralph("judge", *CHECK, "--tests", "may-change")
    assert reported.code == 0
    assert "┃ holds, but look\n┃ look at: the checks pass only with changed tests" in reported.out


def test_a_test_that_is_broken_now_refutes(project: Project, ralph: Ralph) -> None:
    project.commit(calc=RIGHT)
    project.write(calc=WRONG)
    result = ralph("judge", *CHECK)
    assert result.code == 1
    assert "┃ because: python3 -B -m unittest -q fails: test_calc.Adding.test_two" in result.out


def test_a_weakened_test_holds_but_is_shown(project: Project, ralph: Ralph) -> None:
    project.commit(calc=RIGHT)
    project.write(calc=RIGHT.replace("+", "- 0 -"), test_calc=TEST.replace("add(2, 2), 4", "add(0, 0), 0"))
    result = ralph("judge", *CHECK)
    assert result.code == 0
    assert "┃ holds, but look\n┃ look at: test_calc.Adding.test_two, as it was, fails now" in result.out


def test_a_check_that_exits_early_refutes(project: Project, ralph: Ralph) -> None:
    project.write(calc="import os\nos._exit(0)\n")
    result = ralph("judge", *CHECK)
    assert result.code == 1
    assert "no longer reports any tests (2 before)" in result.out


def test_tests_that_fail_before_and_now_are_left_out_and_named(project: Project, ralph: Ralph) -> None:
    project.write(other="x = 1\n", test_more=MORE.replace("add(1, 2), 3", "add(1, 0), 1"))
    result = ralph("judge", *CHECK)
    assert result.code == 0
    assert "note: left out 1 test that fails here before and now: test_calc.Adding.test_two" in result.out


def test_a_cheat_next_to_a_test_that_always_fails_is_refuted(project: Project, ralph: Ralph) -> None:
    local = "    def test_here(self):\n        self.fail('no such machine')\n"
    project.commit(test_local=TEST + "\nclass Here(unittest.TestCase):\n" + local)
    project.write(test_calc=CHEAT, test_local=CHEAT + "\nclass Here(unittest.TestCase):\n" + local)
    result = ralph("judge", *CHECK)
    assert result.code == 1
    assert "the checks pass only with changed tests (test_calc.Adding.test_two" in result.out


def test_a_change_that_nothing_asked_for_proves_little(project: Project, ralph: Ralph) -> None:
    project.commit(calc=RIGHT)
    project.write(calc=RIGHT + "\n\ndef sub(a, b):\n    return a + b\n")
    proves_little = "nothing here asked for this change"
    assert proves_little in ralph("judge", *CHECK).out
    project.write(test_more=MORE.replace("add", "sub").replace("(1, 2), 3", "(3, 0), 3"))
    result = ralph("judge", *CHECK)
    assert result.code == 0
    assert proves_little not in result.out
    assert "with the code as it was" in result.out


def test_a_flaky_check_cannot_judge(project: Project, ralph: Ralph, tmp_path: Path) -> None:
    project.write(calc=RIGHT)
    project.commit()
    coin = f"test -e {tmp_path}/tossed || {{ touch {tmp_path}/tossed; false; }}"
    result = ralph("judge", "HEAD~1", "--check", f"grep -q 'a - b' calc.py || {coin}")
    assert result.code == 2
    assert "could not judge\n┃ because: the checks failed once and passed the next time" in result.out


def test_an_exam_refutes_and_its_text_stays_out_of_the_receipt(
    project: Project, ralph: Ralph, environment: dict[str, str]
) -> None:
    exam = Path(environment["HOME"]) / "exams" / "calc.py"
    exam.parent.mkdir()
    script = (
        "import sys\nsys.path.insert(0, '')\nfrom calc import add\nassert add(40, 2) == 42, 'SECRET'\nprint('PASS')\n"
    )
    exam.write_text(script)
    project.write(calc="def add(a, b):\n    return 4 if a == 2 else 0\n")
    result = ralph("judge", *CHECK, "--exam", f"python3 {exam}", "--json")
    assert result.code == 1
    (receipt,) = result.events
    assert receipt["reasons"] == ["the exam fails: calc.py"]
    assert [exam["script"] for exam in receipt["exams"]] == ["calc.py"]
    assert "SECRET" not in result.out
    assert str(exam.parent.parent) not in result.out


def test_a_protected_file_refutes(project: Project, ralph: Ralph) -> None:
    project.write(calc=RIGHT, test_calc=TEST + "\n\n")
    result = ralph("judge", *CHECK, "--protect", "test_*.py")
    assert result.code == 1
    assert "because: protected files were changed: test_calc.py" in result.out


def test_a_review_is_asked_last_and_may_refute(project: Project, ralph: Ralph, agent: Callable[..., str]) -> None:
    agent("echo 'CHANGES: name the parameters'", "critic")
    project.write(calc=RIGHT)
    result = ralph("judge", *CHECK, "--review-agent", "critic")
    assert result.code == 1, result.err
    assert "because: a review asks for changes: name the parameters" in result.out


def test_the_proof_names_what_no_check_notices(project: Project, ralph: Ralph) -> None:
    project.write(calc=RIGHT, sub="def sub(a, b):\n    return a - b\n")
    result = ralph("judge", *CHECK, "--prove")
    assert result.code == 0
    assert "no check notices if these are undone: sub.py:" in result.out


# By which checks


def test_checks_come_from_the_base_not_from_what_is_judged(project: Project, ralph: Ralph) -> None:
    (project.folder / ".ralph").mkdir()
    settings = project.folder / ".ralph" / "settings.json"
    settings.write_text(json.dumps({"checks": [CHECK[1]]}))
    project.commit()
    settings.write_text('{"checks": ["true"]}')
    result = ralph("judge")
    assert "the change has other checks than the base, whose own count: python3 -B -m unittest -q\n" in result.out
    project.write(test_calc=CHEAT)
    assert ralph("judge").code == 1


def test_settings_that_git_does_not_track_count_as_they_are(project: Project, ralph: Ralph) -> None:
    (project.folder / ".ralph").mkdir()
    (project.folder / ".ralph" / "settings.json").write_text(json.dumps({"checks": [CHECK[1]]}))
    project.write(calc=RIGHT)
    result = ralph("judge")
    assert result.code == 0
    assert "python3 -B -m unittest -q" in result.out
    assert "other checks" not in result.out


def test_without_settings_the_checks_of_the_base_are_detected(project: Project, ralph: Ralph) -> None:
    project.write(calc=RIGHT)
    (project.folder / "Makefile").write_text("test:\n\ttrue\n")
    result = ralph("judge")
    assert result.code == 0
    assert "python3 -m unittest discover" in result.out
    assert "the change has other checks than the base" in result.out


# What it says


def test_the_receipt_is_kept_and_has_no_absolute_path(
    project: Project, ralph: Ralph, environment: dict[str, str]
) -> None:
    project.write(calc=RIGHT)
    result = ralph("judge", "--check", f"cd {project.folder} && {CHECK[1]}", "--json")
    (receipt,) = result.events
    (kept,) = (Path(environment["HOME"]) / ".local/state/ralph/judgements").iterdir()
    assert json.loads(kept.read_text()) == receipt
    assert receipt["verdict"] == "holds"
    assert receipt["uncommitted"] is True
    assert receipt["head"]["tree"] != receipt["base"]["tree"]
    assert receipt["cells"]["base"][0]["failing"] == ["test_calc.Adding.test_two"]
    assert receipt["stale_when"] == "base, head, checks or tools change"
    assert str(project.folder) not in result.out
    assert environment["HOME"] not in result.out


def test_a_comment_and_a_page_say_the_same(project: Project, ralph: Ralph, tmp_path: Path) -> None:
    project.write(test_calc=CHEAT)
    page = tmp_path / "judged.html"
    result = ralph("judge", *CHECK, "--markdown", "--html", str(page))
    assert result.code == 1
    assert result.out.startswith("### ❌ refuted\n")
    assert "| with the tests as they were |  | ✗ test\\_two |" in result.out
    assert "the checks pass only with changed tests" in page.read_text().lower()


def test_somebody_elses_work_runs_with_your_rights_and_judge_says_so(project: Project, ralph: Ralph) -> None:
    project.git("switch", "-qc", "theirs")
    project.write(calc=RIGHT)
    project.git("commit", "-qam", "theirs", "--author", "Them <them@elsewhere>")
    sentence = "the judged code runs with your rights: for other people's work --sandbox"
    assert ralph("judge", *CHECK).out.count(sentence) == 1
    project.commit(other="x = 1\n")
    assert sentence not in ralph("judge", *CHECK).out


def test_the_schema_of_a_judgement_is_printed(ralph: Ralph) -> None:
    schema = json.loads(ralph("schema", "judgement").out)
    assert {"verdict", "cells", "stale_when"} <= schema["$defs"]["Receipt"]["properties"].keys()


# Bad input: one line, a hint, exit 2


def refused(result: Result) -> str:
    """Return the message of a refusal, after checking its form."""
    assert result.code == 2, result.out
    error, hint = result.err.splitlines()
    assert hint.startswith("hint: ")
    return error


def test_two_words_are_refused_with_the_right_form(project: Project, ralph: Ralph) -> None:
    result = ralph("judge", "main", "feature")
    assert refused(result) == "ralph: two words: main and feature"
    assert "ralph judge main..feature" in result.err


def test_nothing_to_judge_is_refused(project: Project, ralph: Ralph) -> None:
    assert refused(ralph("judge", *CHECK)) == "ralph: nothing to judge: HEAD is main, and everything is committed"
    assert refused(ralph("judge", "HEAD", *CHECK)) == "ralph: nothing changed since HEAD"


def test_an_unknown_base_is_refused(project: Project, ralph: Ralph) -> None:
    assert refused(ralph("judge", "nonsense", *CHECK)) == "ralph: unknown commit or branch: nonsense"


def test_no_common_ancestor_is_refused(project: Project, ralph: Ralph) -> None:
    project.git("switch", "-q", "--orphan", "island")
    project.commit(calc=RIGHT)
    assert "main and HEAD have no common ancestor" in refused(ralph("judge", "main", *CHECK))


def test_a_shallow_clone_names_the_cure(project: Project, ralph: Ralph, tmp_path: Path) -> None:
    project.commit(calc=RIGHT)
    project.git("clone", "-q", "--depth=1", f"file://{project.folder}", str(tmp_path / "shallow"))
    result = ralph("judge", "HEAD~1", *CHECK, cwd=tmp_path / "shallow")
    assert "this clone is shallow and does not reach HEAD~1" in refused(result)
    assert "git fetch --unshallow" in result.err
    assert "fetch-depth: 0" in result.err


def test_no_repository_is_refused(workspace: Path, ralph: Ralph) -> None:
    assert "is not in a git repository" in refused(ralph("judge", *CHECK))


def test_no_check_is_refused_with_one_that_would_do(repository: Path, ralph: Ralph) -> None:
    (repository / "Makefile").write_text("test:\n\ttrue\n")
    result = ralph("judge")
    assert "no checks given, and none found in this project at the base" in refused(result)
    assert 'ralph judge --check "make test"' in result.err


def test_a_check_that_cannot_start_cannot_judge(project: Project, ralph: Ralph) -> None:
    project.write(calc=RIGHT)
    result = ralph("judge", "--check", "no-such-program")
    assert result.code == 2
    assert "┃ could not judge\n┃ because: " in result.out
    assert "no-such-program" in result.out.rpartition("because")[2]


def test_a_merge_in_progress_is_refused(project: Project, ralph: Ralph) -> None:
    project.git("switch", "-qc", "other")
    project.commit(calc=RIGHT)
    project.git("switch", "-q", "main")
    project.git("merge", "-q", "--no-commit", "--no-ff", "other")
    assert "a merge is in progress" in refused(ralph("judge", *CHECK))


def test_a_dirty_submodule_is_refused(project: Project, ralph: Ralph, tmp_path: Path) -> None:
    project.git("clone", "-q", str(project.folder), str(tmp_path / "library"))
    project.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "library"), "library")
    project.commit(calc=RIGHT)
    (project.folder / "library" / "calc.py").write_text(RIGHT)
    assert "uncommitted changes in the submodule library" in refused(ralph("judge", "HEAD~1", *CHECK))


def test_content_in_git_lfs_that_is_not_here_cannot_be_judged(project: Project, ralph: Ralph) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 12\n"
    (project.folder / "data.bin").write_text(pointer.format("0" * 64))
    result = ralph("judge", *CHECK)
    assert result.code == 2
    assert "because: the content of data.bin is in Git LFS, and not here" in result.out


def test_a_check_that_takes_too_long_cannot_judge(project: Project, ralph: Ralph) -> None:
    project.write(calc=RIGHT)
    result = ralph("judge", "--check", "sleep 60", "--check-timeout", "0.2s")
    assert result.code == 2
    assert "because: sleep 60" in result.out


def test_a_ctrl_c_ends_with_130_and_leaves_nothing(
    project: Project, environment: dict[str, str], tmp_path: Path, eventually: Callable[..., None]
) -> None:
    project.write(calc=RIGHT)
    before, started = project.state(), tmp_path / "started"
    check = ("--check", f"touch {started}; sleep 600")
    process = subprocess.Popen((*COMMAND, "judge", *check), cwd=project.folder, env=environment, stdout=-1, stderr=-1)
    eventually(started.exists)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert project.state() == before
    assert len(project.git("worktree", "list").splitlines()) == 1


# From Python


def test_python_gets_the_receipt(project: Project) -> None:
    project.write(test_calc=CHEAT)
    receipt = judge(workspace=project.folder, checks=[CHECK[1]])
    assert (receipt.verdict, receipt.exit_code) == ("refuted", 1)
    assert receipt.cells["old_tests"][0].failing == ("test_calc.Adding.test_two",)
    with pytest.raises(UserError, match="unknown commit or branch: nonsense"):
        judge("nonsense", workspace=project.folder, checks=[CHECK[1]])
