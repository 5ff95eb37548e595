"""The project's settings apply inside a session as well: checks, tasks, protected files, budgets, stalls."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DONE = "All is finished.\n<promise>DONE</promise>"


@pytest.fixture
def settings(workspace):
    def write(**said):
        (workspace / ".ralph").mkdir(exist_ok=True)
        (workspace / ".ralph/settings.json").write_text(json.dumps(said))

    return write


def test_a_red_check_blocks_the_stop_with_its_output_as_the_reason(session, settings, workspace, log):
    settings(guardrails=[{"command": "echo the-output; test -e made.txt", "hint": "make it"}])
    session.start()
    session.works()
    answer = session.stops(DONE)
    assert answer.is_block
    assert 'Guardrail "echo the-output; test -e made.txt" failed with exit code 1.' in answer.reason
    assert "Hint: make it" in answer.reason
    assert "the-output" in answer.reason
    assert "Original task:\nfix the tests" in answer.reason
    assert "promise rejected by checks" in log()[-1]
    (workspace / "made.txt").touch()
    answer = session.stops(DONE)
    assert not answer.is_block
    assert "PROMISE_ACCEPTED" in answer.message
    assert "1 check passes" in answer.message


def test_a_check_can_be_given_with_the_loop(session, workspace):
    session.start("--check", "test -e made.txt")
    session.works()
    assert "test -e made.txt" in session.stops(DONE).reason
    (workspace / "made.txt").touch()
    assert session.stops("hm").is_block, "green checks are no promise"
    assert not session.stops(DONE).is_block


def test_the_agent_cannot_change_the_checks_of_a_loop(session, settings):
    settings(guardrails=[{"command": "false"}])
    session.start()
    session.works()
    settings(guardrails=[{"command": "true"}])
    assert session.stops(DONE).is_block


def test_a_check_that_takes_too_long_is_ended_and_reported(session, settings):
    settings(guardrails=[{"command": "sleep 3456"}], checkTimeout=0.1)
    session.start()
    session.works()
    answer = session.stops(DONE)
    assert answer.is_block
    assert "timeout" in answer.reason.lower()


def test_a_protected_file_is_restored_and_the_promise_refused(session, settings, workspace):
    (workspace / "test_it.py").write_text("assert False\n")
    settings(protect=["test_*.py"])
    session.start()
    session.works()
    (workspace / "test_it.py").write_text("assert True\n")
    answer = session.stops(DONE)
    assert answer.is_block
    assert "test_it.py" in answer.reason
    assert (workspace / "test_it.py").read_text() == "assert False\n"
    assert not session.stops(DONE).is_block


def test_a_promise_is_refused_while_tasks_are_open(session, settings, workspace):
    (workspace / "TODO.md").write_text("- [x] one\n- [ ] two\n")
    settings(tasks="TODO.md")
    session.start()
    session.works()
    assert "The next one: two" in session.stops(DONE).reason
    (workspace / "TODO.md").write_text("- [x] one\n- [x] two\n")
    assert not session.stops(DONE).is_block


@pytest.mark.parametrize(
    ("left", "told"), [(None, "fix it: cannot read the tasks file"), ("- [x] other\n", "one (it was removed from")]
)
def test_a_removed_task_does_not_count_as_done(session, settings, workspace, left, told):
    (workspace / "TODO.md").write_text("- [ ] one\n")
    settings(tasks="TODO.md")
    session.start()
    session.works()
    (workspace / "TODO.md").unlink() if left is None else (workspace / "TODO.md").write_text(left)
    assert told in session.stops(DONE).reason
    (workspace / "TODO.md").write_text("- [x] one\n")
    assert not session.stops(DONE).is_block


@pytest.mark.parametrize("checks", [None, "true"])
def test_a_loop_keeps_its_checks_if_the_agent_edits_or_removes_the_copy_of_its_order(
    session, settings, workspace, checks
):
    settings(guardrails=[{"command": "false"}])
    session.start()
    session.works()
    [order] = workspace.glob(".ralph/hook/runs/*/run.json")
    order.write_text(order.read_text().replace("false", checks)) if checks else order.unlink()
    assert "false" in session.stops(DONE).reason


def test_a_loop_whose_request_is_gone_ends_as_a_failure(session, settings, environment):
    settings(guardrails=[{"command": "false"}])
    session.start()
    session.works()
    [order] = Path(environment["HOME"]).glob(".local/state/ralph/orders/*/run.json")
    order.unlink()
    answer = session.stops(DONE)
    assert not answer.is_block
    assert answer.message.startswith("ralph: FATAL: run ")
    assert "is missing" in answer.message
    assert session.status() == "FATAL"
    assert session.journal[-1]["data"]["outcome"] == "fatal"


def test_a_loop_is_refused_if_the_settings_ask_for_a_sandbox(session, settings, workspace):
    settings(sandbox={"enabled": True})
    result = session.try_start()
    assert result.code == 2
    assert "ralph run --preset promise --sandbox" in result.err
    assert not list(workspace.glob(".ralph/hook/*.json"))


def test_a_stall_ends_the_loop(session, settings, repository):
    settings(stall=1)
    session.start()
    assert session.stops("the same").is_block
    answer = session.stops("the same")
    assert not answer.is_block
    assert session.status() == "STALLED"


def test_tokens_are_counted_from_the_transcript(session, settings):
    settings(maxTokens=250)
    session.start()

    def turn(number):
        usage = {"input_tokens": 90, "output_tokens": 10, "cache_read_input_tokens": 20}
        message = {"id": f"m{number}", "role": "assistant", "model": "m", "usage": usage}
        for block in ({"type": "text", "text": "hm"}, {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}):
            session.write({"type": "assistant", "message": {**message, "content": [block]}})

    turn(1)
    assert session.stops("hm").is_block
    turn(2)
    assert session.stops("hm").is_block
    turn(3)
    answer = session.stops("hm")
    assert not answer.is_block
    assert "360 of 250 tokens" in answer.message
    assert session.status() == "BUDGET_EXHAUSTED"


def test_a_promise_counts_even_if_the_budget_is_spent(session, settings):
    settings(maxTokens=1)
    session.start()
    session.works()
    session.write({"type": "assistant", "message": {"id": "m", "content": [], "usage": {"input_tokens": 500}}})
    assert "PROMISE_ACCEPTED" in session.stops(DONE).message


def test_a_loop_ends_at_its_time_limit(session, settings, workspace):
    settings(maxTime=60)
    session.start()
    assert session.stops("hm").is_block
    [state] = workspace.glob(".ralph/hook/*.json")
    facts = json.loads(state.read_text())
    state.write_text(json.dumps({**facts, "started": facts["started"] - 61}))
    assert not session.stops("hm").is_block
    assert session.status() == "TIME_IS_OVER"


def test_without_known_tool_calls_a_changed_workspace_counts_as_work(session, repository):
    session.start()
    nowhere = {"transcript_path": "/nowhere.jsonl"}
    assert "no tool calls/work" in session.stops(DONE, **nowhere).reason
    (repository / "README").write_text("changed\n")
    assert not session.stops(DONE, **nowhere).is_block


def test_the_iteration_limit_applies_even_if_the_journal_is_removed(session, settings, workspace):
    settings(guardrails=[{"command": "false"}])
    session.start("--max-iterations", "2")
    session.works()
    assert session.stops(DONE).is_block
    [journal] = workspace.glob(".ralph/hook/runs/*/journal.ndjson")
    journal.write_text("")
    assert session.stops(DONE).is_block
    assert not session.stops(DONE).is_block
    assert session.status() == "MAX_ITERATIONS_REACHED"


def test_limits_in_the_settings_file_apply(session, settings):
    settings(maximumIterations=1, minToolCalls=2)
    session.start()
    assert session.stops("hm").is_block
    assert "MAX_ITERATIONS_REACHED" in session.stops("hm").message


def test_another_claim_in_the_settings_does_not_replace_the_promise(session, settings):
    settings(preset="guardrails", until=["word:STOP"])
    session.start()
    session.works()
    assert session.stops("STOP").is_block
    assert not session.stops(DONE).is_block


def test_the_progress_file_of_a_run_is_not_used_by_a_loop(session, settings, workspace):
    settings(guardrails=[{"command": "test -e made.txt"}])
    progress = workspace / ".ralph/progress.md"
    progress.write_text("## Iteration 1\n")
    session.start()
    session.works()
    assert session.stops(DONE).is_block
    (workspace / "made.txt").touch()
    assert not session.stops(DONE).is_block
    assert progress.read_text() == "## Iteration 1\n"


def test_an_agent_that_may_ask_can_stop_until_its_question_is_answered(session, settings, workspace, log):
    settings(onQuestion="wait")
    assert ".ralph/QUESTION.md" in session.start("--max-iterations", "5").out
    assert ".ralph/QUESTION.md" in session.stops("hm").reason
    (workspace / ".ralph/QUESTION.md").write_text("Which of the two?")
    asked = session.stops("I have asked.")
    assert not asked.is_block
    assert "waiting for an answer: Which of the two?" in asked.message
    assert "waiting for an answer" in log()[-1]
    assert session.status() == "ACTIVE"
    session.asks("the first one")
    assert session.stops("Fine, so I go on.").is_block
    session.works()
    assert "PROMISE_ACCEPTED" in session.stops(DONE).message


def test_an_agent_that_may_not_ask_must_continue_and_its_question_is_reported(session, workspace):
    session.start()
    (workspace / ".ralph/QUESTION.md").write_text("Which of the two?")
    assert session.stops("I have asked.").is_block
    assert [row["data"]["text"] for row in session.journal if row["type"] == "question_asked"] == ["Which of the two?"]


RULE = """from ralph.core.model import Outcome, Stop
def enough(run):
    if len(run.iterations) == 2:
        yield Stop(Outcome.FAILED, "that will do")
"""


def test_the_users_own_rules_apply(session, settings, environment, tmp_path):
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "own_rules_of_a_house.py").write_text(RULE)
    environment["PYTHONPATH"] = str(beside)
    settings(rules=["own_rules_of_a_house:enough"])
    session.start()
    assert session.stops("hm").is_block
    assert "FAILED: that will do" in session.stops("hm").message
    assert session.status() == "FAILED"


def test_invalid_settings_start_no_loop(session, settings, workspace):
    settings(maximumIteration=1)
    result = session.try_start()
    assert result.code == 2
    assert "maximumIteration" in result.err
    assert not list(workspace.glob(".ralph/hook/*.json"))


def test_a_check_with_a_key_in_it_is_refused(session, settings, workspace):
    settings(guardrails=[{"command": "curl -H 'Authorization: Bearer ghp_" + "a1B2" * 9 + "' localhost"}])
    result = session.try_start()
    assert result.code == 2
    assert "contain a secret" in result.err
    assert not list(workspace.glob(".ralph/hook/*.json"))


def test_no_check_outlives_a_hook_that_is_terminated(session, settings, environment, workspace):
    up = workspace.parent / "up"
    os.mkfifo(up)
    settings(guardrails=[{"command": f"echo $$ > {up}; exec sleep 3457"}], grace=0)
    session.start()
    session.works()
    event = {"session_id": session.name, "transcript_path": str(session.transcript), "last_assistant_message": DONE}
    process = subprocess.Popen(
        [sys.executable, "-m", "ralph", "hook", "stop"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=workspace,
        env=environment,
    )
    process.stdin.write(json.dumps(event).encode())
    process.stdin.close()
    check = int(up.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read() == b""
    process.stdout.close()
    assert process.wait() == 0
    assert not os.path.exists(f"/proc/{check}")
    assert session.status() == "ACTIVE"


def test_an_exam_decides_about_a_promise(session, settings, repository, environment):
    exam = Path(environment["HOME"], "exam.sh")
    exam.write_text("echo zq-exam-token; grep -q honest work\n")
    settings(exams=[f"sh {exam}"])
    session.start("--check", "test -f work")
    (repository / "work").write_text("overfit")
    session.works()
    refused = session.stops("<promise>DONE</promise>")
    assert refused.is_block
    assert "the hidden exam does not (refusal 1 of 3)" in refused.reason
    assert "zq-exam-token" not in refused.reason
    (repository / "work").write_text("honest")
    session.works()
    assert not session.stops("<promise>DONE</promise>").is_block


TESTS = """import unittest
from calc import add

class Adding(unittest.TestCase):
    def test_two(self):
        self.assertEqual(add(2, 2), 4)

    def test_zero(self):
        self.assertEqual(add(0, 0), 0)
"""
EDITED = TESTS.replace("2), 4", "2), 0")


@pytest.fixture
def red_test(repository, git):
    """A project whose test_two is red, because add subtracts."""
    (repository / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (repository / "test_calc.py").write_text(TESTS)
    git("add", "-A")
    git("commit", "-qm", "project")
    return repository


def test_a_promise_is_refused_if_a_red_test_was_changed_instead_of_fixed(session, red_test):
    session.start("--check", "python3 -B -m unittest")
    session.works()
    (red_test / "test_calc.py").write_text(EDITED)
    answer = session.stops(DONE)
    assert answer.is_block
    assert "test_two was red before you began" in answer.reason
    assert "(refusal 1 of 3)" in answer.reason
    (red_test / "test_calc.py").write_text(TESTS)
    (red_test / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    session.works()
    answer = session.stops(DONE)
    assert not answer.is_block
    assert "PROMISE_ACCEPTED" in answer.message


def test_three_refusals_because_of_a_changed_test_end_the_loop_in_a_session(session, red_test):
    session.start("--check", "python3 -B -m unittest")
    (red_test / "test_calc.py").write_text(EDITED)
    for _ in range(2):
        session.works()
        assert session.stops(DONE).is_block
    session.works()
    answer = session.stops(DONE)
    assert not answer.is_block
    assert "BLOCKED: the checks pass only with changed tests" in answer.message
    assert "ralph resume" not in answer.message, "a session's loop cannot be resumed"


def test_a_loop_in_a_session_may_be_about_its_tests(session, red_test):
    session.start("--check", "python3 -B -m unittest", "--tests", "may-change")
    session.works()
    (red_test / "test_calc.py").write_text(EDITED)
    answer = session.stops(DONE)
    assert not answer.is_block
    assert "PROMISE_ACCEPTED" in answer.message
