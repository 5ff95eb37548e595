"""From a goal to a plan that a person or --yes accepts."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PLAN = """# Plan: Coupons

A cart takes coupons.

## Checks

- `test -f cart`

## Tasks

- [ ] T1 Cart: there is one
  check: `grep -q coupon cart`
"""
QUESTION = "\n## Questions\n\n- [ ] Which currency?\n"
Start = Callable[..., Any]


def says(text: str) -> str:
    return f"cat <<'END'\n{text}END\n"


def test_an_agents_plan_is_written_and_the_result_of_every_check_shown(
    ralph: Start, agent: Start, repository: Path
) -> None:
    (repository / "cart").write_text("empty\n")
    done = ralph("plan", "Add coupons", "--yes", "--agent", agent(says(PLAN)), "--check", "no-such-program")
    assert done.code == 0, done.err
    assert (repository / "PLAN.md").read_text() == PLAN
    assert done.out.strip() == str(repository / "PLAN.md")
    assert "green         test -f cart  (never seen red: unproven)" in done.err
    assert "red           grep -q coupon cart  (exit code 1)" in done.err
    assert "  goal       plan: Add coupons" in done.err.splitlines(), "and not the whole prompt"


def test_ralph_work_and_the_tasks_option_read_the_plan(ralph: Start, agent: Start, repository: Path) -> None:
    assert ralph("plan", "Add coupons", "--yes", "--agent", agent(says(PLAN))).code == 0
    shown = ralph("work", "PLAN.md", "--dry-run", "--agent", agent("true"))
    assert shown.out.splitlines() == ["check: test -f cart", "[ ] T1: T1 Cart: there is one"]
    worker = agent("echo coupon > cart; sed -i 's/\\[ ]/[x]/' PLAN.md; echo COMPLETE", "worker")
    done = ralph("loop", "--tasks", "PLAN.md", "--agent", worker)
    assert done.code == 0, done.err
    assert (repository / "cart").read_text() == "coupon\n"


def test_a_run_of_a_plan_must_pass_the_checks_of_the_plan_and_of_its_tasks(
    ralph: Start, agent: Start, repository: Path
) -> None:
    (repository / "PLAN.md").write_text(PLAN)
    done = ralph("loop", "--tasks", "PLAN.md", "--agent", agent("echo COMPLETE"), "-m", "1", "--json")
    assert done.code == 1
    assert done.one("run_started")["checks"] == ["test -f cart", "grep -q coupon cart"]
    assert done.one("run_started")["goal"].startswith("Carry out the plan in PLAN.md")


def test_a_plan_with_an_open_question_is_not_run(ralph: Start, agent: Start, repository: Path) -> None:
    (repository / "PLAN.md").write_text(PLAN + QUESTION)
    for command in (("loop", "--tasks", "PLAN.md"), ("work", "PLAN.md")):
        done = ralph(*command, "--agent", agent("echo COMPLETE"))
        assert done.code == 2
        assert "answer and tick this question first: Which currency?" in done.err
        assert "Traceback" not in done.err


def test_the_agent_reads_the_goal_the_shape_and_the_projects_own_checks(
    ralph: Start, agent: Start, repository: Path, prompts: Start
) -> None:
    (repository / "Makefile").write_text("test:\n\ttrue\n")
    assert ralph("plan", "Add coupons", "--yes", "--agent", agent(says(PLAN))).code == 0
    (prompt,) = prompts()
    assert "Add coupons" in prompt
    assert "`make test`" in prompt
    assert "Nobody can answer questions" in prompt


@pytest.mark.parametrize(("name", "words"), [("claude", "--permission-mode plan"), ("codex", "--sandbox read-only")])
def test_known_agents_plan_in_their_read_only_mode(
    ralph: Start, agent: Start, repository: Path, environment: dict[str, str], name: str, words: str
) -> None:
    ralph("plan", "Add coupons", "--yes", "--yolo", "--agent", agent("exit 9", name), "--max-failures", "1")
    argv = Path(environment["HOME"], f"{name}.argv.1").read_text().split("\n")
    assert words in " ".join(argv)
    assert not [word for word in argv if "dangerously" in word]


def test_files_that_the_agent_changes_while_planning_are_restored_and_reported(
    ralph: Start, agent: Start, repository: Path, git: Start
) -> None:
    (repository / "mine").write_text("uncommitted\n")
    before = (git("rev-parse", "HEAD"), git("status", "--porcelain"))
    script = "echo changed > README; rm mine; echo new > new; git add -A; git commit -qm sly; git checkout -qb other\n"
    done = ralph("plan", "Add coupons", "--yes", "--agent", agent(script + says(PLAN)))
    assert done.code == 0, done.err
    (repository / "PLAN.md").unlink()
    assert (repository / "README").read_text() == "hello\n"
    assert (repository / "mine").read_text() == "uncommitted\n"
    assert not (repository / "new").exists()
    assert (git("rev-parse", "HEAD"), git("branch", "--show-current")) == (before[0], "main\n")
    assert "the agent was to change nothing; its changes were undone: README" in done.err


def test_if_ralph_is_killed_while_planning_rewind_restores_the_files(
    ralph: Start, agent: Start, repository: Path, environment: dict[str, str], alive: Start, nap: str, eventually: Start
) -> None:
    (repository / "mine").write_text("uncommitted\n")
    fake = agent(f"echo sly > README; echo sly > mine; [ $N = 1 ] && sleep {nap}\n" + says(PLAN))
    words = ["plan", "Add coupons", "--yes", "--agent", fake]
    run = subprocess.Popen([sys.executable, "-m", "ralph", *words], cwd=repository, env=environment)
    eventually(lambda: alive(nap))
    run.kill()
    run.wait()
    eventually(lambda: not alive(nap))
    assert not (repository / "PLAN.md").exists()
    refused = ralph("resume")
    assert refused.code == 2, refused.err
    assert "start `ralph plan` again" in refused.err
    assert ralph("rewind", "0").code == 0
    assert (repository / "README").read_text() == "hello\n"
    assert (repository / "mine").read_text() == "uncommitted\n"


def test_files_that_the_agent_changes_while_planning_are_restored_without_git(
    ralph: Start, agent: Start, workspace: Path
) -> None:
    (workspace / "mine").write_text("as it was\n")
    done = ralph("plan", "Add coupons", "--yes", "--agent", agent("echo changed > mine; echo > new\n" + says(PLAN)))
    assert done.code == 0, done.err
    assert (workspace / "mine").read_text() == "as it was\n"
    assert sorted(os.listdir(workspace)) == [".ralph", "PLAN.md", "mine"]


def test_an_invalid_plan_is_requested_again_with_its_problems(
    ralph: Start, agent: Start, repository: Path, prompts: Start
) -> None:
    broken = PLAN + "  after: T9\n"
    script = f"if [ $N = 1 ]; then echo no plan yet; elif [ $N = 2 ]; then {says(broken)}else {says(PLAN)}fi"
    done = ralph("plan", "Add coupons", "--yes", "--agent", agent(script))
    assert done.code == 0, done.err
    assert "it contains no plan" in prompts()[1]
    assert "T1 comes after T9, which is not in the list" in prompts()[2]


def test_without_a_valid_plan_no_file_is_written(ralph: Start, agent: Start, repository: Path) -> None:
    done = ralph("plan", "Add coupons", "--yes", "--agent", agent("echo I cannot"))
    assert done.code == 1
    assert not (repository / "PLAN.md").exists()
    assert "exhausted" in done.last_line


def test_a_warning_is_shown_if_every_check_is_already_green(ralph: Start, agent: Start, repository: Path) -> None:
    (repository / "cart").write_text("coupon\n")
    done = ralph("plan", "Add coupons", "--yes", "--agent", agent(says(PLAN)))
    assert done.code == 0
    assert "Every check is green already, so they would prove nothing about this plan." in done.err


def test_a_check_that_cannot_be_run_is_not_shown_as_red(ralph: Start, agent: Start, repository: Path) -> None:
    done = ralph("plan", "x", "--yes", "--agent", agent(says(PLAN.replace("test -f cart", "no-such-program -q"))))
    assert "not runnable  no-such-program -q  (exit code 127" in done.err


def test_with_a_sandbox_the_checks_of_a_plan_are_tried_in_it(
    ralph: Start, agent: Start, repository: Path, environment: dict[str, str], bubblewrap: str
) -> None:
    outside = Path(environment["HOME"], "outside")
    plan = PLAN.replace("test -f cart", f"echo evil > {outside}").replace("grep -q coupon cart", "touch inside")
    fake = agent(f"echo evil > {outside} || true\n" + says(plan))
    done = ralph("plan", "Add coupons", "--yes", "--sandbox", "--agent", fake)
    assert done.code == 0, done.err
    assert not outside.exists(), done.err
    assert "green         touch inside" in done.err, "what is tried in the workspace works there"
    plain = ralph("plan", "PLAN.md", "--yes")
    assert plain.code == 0, plain.err
    assert outside.exists(), "without a box the same check reaches it"


def test_a_check_that_was_red_once_is_no_longer_called_unproven(ralph: Start, agent: Start, repository: Path) -> None:
    assert "red           test -f cart" in ralph("plan", "x", "--yes", "--agent", agent(says(PLAN))).err
    (repository / "cart").write_text("coupon\n")
    again = ralph("plan", "PLAN.md", "--yes")
    assert "green         test -f cart\n" in again.err
    assert json.loads((repository / ".ralph" / "proofs.json").read_bytes()) == ["test -f cart", "grep -q coupon cart"]


def test_with_yes_an_open_question_gives_exit_code_1(ralph: Start, agent: Start, repository: Path) -> None:
    done = ralph("plan", "x", "--yes", "--agent", agent(says(PLAN + QUESTION)))
    assert done.code == 1
    assert "answer and tick: Which currency?" in done.err
    assert (repository / "PLAN.md").read_text() == PLAN + QUESTION


def test_a_person_answers_questions_sees_the_plan_and_accepts_it(person: Start, agent: Start, repository: Path) -> None:
    somebody = person("plan", "Add coupons", "--agent", agent(says(PLAN + QUESTION)))
    somebody.answers("Which currency?", "Euro")
    somebody.answers("Run them? [Y/n]", "y")
    somebody.answers("[l]eave:", "a")
    assert somebody.waits() == 0, somebody.screen
    assert "- [x] Which currency?\n  Answer: Euro\n" in (repository / "PLAN.md").read_text()
    assert "red           test -f cart" in somebody.screen


def test_a_person_can_ask_for_changes(person: Start, agent: Start, repository: Path, prompts: Start) -> None:
    other = PLAN.replace("there is one", "there are two")
    somebody = person("plan", "Add coupons", "--agent", agent(f"if [ $N = 1 ]; then {says(PLAN)}else {says(other)}fi"))
    somebody.answers("Run them? [Y/n]", "n")
    somebody.answers("[l]eave:", "t two carts, please")
    somebody.answers("[l]eave:", "accept")
    assert somebody.waits() == 0, somebody.screen
    assert (repository / "PLAN.md").read_text() == other
    assert prompts()[1].endswith("two carts, please")
    assert PLAN in prompts()[1]


def test_a_person_can_ask_for_changes_of_an_existing_plan(person: Start, agent: Start, repository: Path) -> None:
    other = PLAN.replace("there is one", "there are two")
    (repository / "PLAN.md").write_text(PLAN)
    somebody = person("plan", "PLAN.md", "--agent", agent(says(other)))
    somebody.answers("Run them? [Y/n]", "n")
    somebody.answers("[l]eave:", "t two carts, please")
    somebody.answers("[l]eave:", "accept")
    assert somebody.waits() == 0, somebody.screen
    assert (repository / "PLAN.md").read_text() == other


def test_a_person_can_edit_the_plan_and_its_problems_are_reported(
    person: Start, agent: Start, repository: Path
) -> None:
    breaks = agent(r"""sed -i "s/- \[ \] T1/- T1/" "$1" """, "breaks")
    somebody = person("plan", "Add coupons", "--agent", agent(says(PLAN)), EDITOR=f"</dev/null {breaks}")
    somebody.answers("Run them? [Y/n]", "n")
    somebody.answers("[l]eave:", "e")
    somebody.answers("[l]eave:", "a")
    somebody.answers("[l]eave:", "l")
    assert somebody.waits() == 1
    assert "! PLAN.md: no tasks" in somebody.screen
    assert not (repository / "PLAN.md").exists()


def test_ctrl_c_in_the_editor_does_not_end_ralph(person: Start, agent: Start, repository: Path, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\ntrap "exit 0" INT\necho ready\nwhile :; do sleep 0.01; done\n')
    editor.chmod(0o755)
    somebody = person("plan", "Add coupons", "--agent", agent(says(PLAN)), EDITOR=str(editor))
    somebody.answers("Run them? [Y/n]", "n")
    somebody.answers("[l]eave:", "e")
    somebody.presses("ready", "c")
    somebody.answers("[l]eave:", "l")
    assert somebody.waits() == 1


def test_leaving_the_review_keeps_the_draft(person: Start, agent: Start, repository: Path) -> None:
    somebody = person("plan", "Add coupons", "--agent", agent(says(PLAN)))
    somebody.answers("Run them? [Y/n]", "n")
    somebody.presses("[l]eave:", "c")
    assert somebody.waits() == 130
    assert (repository / ".ralph" / "plan.md").read_text() == PLAN
    again = person("plan", ".ralph/plan.md", "-o", "PLAN.md")
    again.answers("Run them? [Y/n]", "n")
    again.answers("[l]eave:", "l")
    assert again.waits() == 1


def test_an_existing_plan_is_reviewed_without_an_agent_and_stays_byte_for_byte(ralph: Start, repository: Path) -> None:
    data = b"\xef\xbb\xbf" + PLAN.replace("\n", "\r\n").encode() + b"\xff trailing"
    (repository / "PLAN.md").write_bytes(data)
    done = ralph("plan", "PLAN.md", "--yes")
    assert done.code == 0, done.err
    assert (repository / "PLAN.md").read_bytes() == data


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "--yes"), "no goal"),
        (("plan",), "needs a terminal"),
        (("plan", " ", "--yes"), "the goal is empty"),
        (("plan", "Add coupons"), "needs a terminal"),
        (("plan", "Add", "coupons", "--yes"), "folder not found: coupons"),
        (("plan", "x", "--yes", "--agent", "nobody-here"), "command not found: nobody-here"),
        (("plan", "x", "--wrong"), "no such option: --wrong"),
    ],
)
def test_bad_input_is_a_one_line_error_with_a_hint(
    ralph: Start, repository: Path, words: tuple[str, ...], said: str
) -> None:
    done = ralph(*words)
    assert done.code == 2
    assert said in done.err
    assert "hint: " in done.err
    assert "Traceback" not in done.err


def test_a_plan_is_never_overwritten_by_another(ralph: Start, agent: Start, repository: Path) -> None:
    (repository / "PLAN.md").write_text("my own\n")
    done = ralph("plan", "x", "--yes", "--agent", agent(says(PLAN)))
    assert done.code == 2
    assert "PLAN.md already exists" in done.err
    assert (repository / "PLAN.md").read_text() == "my own\n"


def test_the_output_option_names_the_file_and_is_validated_before_the_agent_starts(
    ralph: Start, agent: Start, repository: Path
) -> None:
    assert ralph("plan", "x", "--yes", "--agent", agent(says(PLAN)), "-o", "plans/of/mine.md").code == 0
    assert (repository / "plans" / "of" / "mine.md").read_text() == PLAN
    done = ralph("plan", "x", "--yes", "--agent", agent("touch ran", "other"), "-o", "plans/of/mine.md/another.md")
    assert (done.code, "cannot write" in done.err) == (2, True)
    assert not (repository / "ran").exists()


def test_yes_refuses_an_existing_plan_with_problems(ralph: Start, repository: Path) -> None:
    (repository / "PLAN.md").write_text(PLAN.replace("  check", "  after: T2\n- [ ] T2 Two\n  after: T1\n  check"))
    done = ralph("plan", "PLAN.md", "--yes")
    assert done.code == 2
    assert "each comes after the next" in done.err


def test_the_report_says_which_checks_have_ever_failed(ralph: Start, agent: Start, repository: Path) -> None:
    words = ("--check", "test -f cart", "--check", "true", "--agent", agent("[ $N = 1 ] || echo > cart; echo COMPLETE"))
    assert ralph("loop", "x", *words).code == 0
    said = "Seen red at least once: test -f cart. Never seen red, so unproven: true."
    assert said in ralph("report").out
    assert ralph("loop", "again", *words).code == 0
    assert said in ralph("report").out


@pytest.mark.slow
def test_planning_in_ten_thousand_files_takes_little_longer_than_the_agent(
    ralph: Start, agent: Start, repository: Path, git: Start, tmp_path: Path
) -> None:
    """The limit is 0.5 s of processor time, so other processes don't matter. The first run writes bytecode and lists
    the git commands."""
    for folder in range(100):
        (repository / f"d{folder}").mkdir()
        for file in range(100):
            (repository / f"d{folder}" / f"{file}.py").write_text(f"x = {folder * 100 + file}\n")
    git("-c", "core.compression=0", "add", "-A")
    git("commit", "-qm", "many")
    (repository / "cart").write_text("coupon\n")
    words = ("plan", "x", "--yes", "--agent", agent(says(PLAN)), "-o")
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")}
    spy = tmp_path / "spy" / "git"
    spy.parent.mkdir()
    spy.write_text(f'#!/bin/sh\necho "$*" >> "{tmp_path}/asked"\nexec "{shutil.which("git")}" "$@"\n')
    spy.chmod(0o755)
    assert ralph(*words, "PLAN.md", **compiled, PATH=f"{spy.parent}:{os.environ['PATH']}").code == 0
    asked = (tmp_path / "asked").read_text().splitlines()
    assert (len(asked) <= 14, sum(" status " in one for one in asked)) == (True, 2), asked
    took: list[float] = []
    while len(took) < 5 and min(took, default=1.0) >= 0.5:
        before = os.times()
        assert ralph(*words, f"PLAN{len(took)}.md", **compiled).code == 0
        after = os.times()
        took.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(took) < 0.5, took
