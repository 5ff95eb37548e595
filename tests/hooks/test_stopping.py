"""When the agent may stop: the five acceptance tests of a loop inside a session, and cases from real sessions."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

DONE = "All is finished.\n<promise>DONE</promise>"


def test_a_promise_after_work_is_accepted(session, log):
    session.start()
    session.works()
    answer = session.stops(DONE)
    assert not answer.is_block
    assert "PROMISE_ACCEPTED" in answer.message
    assert session.status() == "PROMISE_ACCEPTED"
    assert "PROMISE_ACCEPTED" in log()[-1]


def test_a_stop_without_the_promise_is_blocked_and_the_task_repeated(session):
    session.start(task="fix the $(tests) & `more`")
    answer = session.stops("I'm done")
    assert answer.is_block
    assert "did not output the completion promise <promise>DONE</promise>" in answer.reason
    assert "Original task:\nfix the $(tests) & `more`" in answer.reason
    assert session.status() == "ACTIVE"


def test_a_limit_of_n_iterations_allows_n_continuations(session, log):
    session.start("--max-iterations", "2")
    assert [session.stops("not yet").is_block for _ in range(3)] == [True, True, False]
    assert session.status() == "MAX_ITERATIONS_REACHED"
    assert [line.split("iteration=")[1].split()[0] for line in log()] == ["0/2", "1/2", "2/2", "2/2"]


def test_zero_continuations_are_allowed(session):
    session.start("--max-iterations", "0")
    assert "MAX_ITERATIONS_REACHED" in session.stops("not yet").message


def test_a_promise_without_work_is_rejected(session, log):
    session.start()
    answer = session.stops(DONE)
    assert answer.is_block
    assert answer.reason.startswith("Promise detected, but no tool calls/work were performed")
    assert "fix the tests" in answer.reason
    assert "promise rejected" in log()[-1]
    session.works()
    assert "PROMISE_ACCEPTED" in session.stops(DONE).message


@pytest.mark.parametrize(
    "text",
    ["I will not output <promise>DONE</promise> yet", "Next:\n- <promise>DONE</promise>", "<promise>done</promise>"],
)
def test_a_promise_that_does_not_count_is_not_called_missing(session, log, text):
    session.start()
    session.works()
    answer = session.stops(text)
    assert answer.is_block
    assert answer.reason.startswith('You wrote "')
    assert "alone on the last line, after an empty line" in answer.reason
    assert "did not output" not in answer.reason
    assert "promise rejected by wording" in log()[-1]
    assert "DONE</promise>" in log()[-1].replace("done", "DONE")


def test_a_promise_in_an_earlier_message_of_the_turn_counts(session):
    session.start()
    session.works()
    session.says(DONE)
    session.works()
    assert "PROMISE_ACCEPTED" in session.stops("I have also removed the temporary files.").message


def test_a_promise_from_before_the_last_refusal_or_the_loop_does_not_count(session):
    session.says(DONE)
    session.start()
    assert session.stops("still working").is_block, "said before the loop started"
    assert session.stops(DONE).is_block, "no work was done"
    session.works()
    assert session.stops("I am working on it.").is_block, "the promise was refused"


def test_an_earlier_message_that_only_mentions_the_promise_does_not_count(session, log):
    session.start()
    session.works()
    session.says("I will output <promise>DONE</promise> once the tests pass.")
    assert session.stops("Two tests fail.").is_block
    assert "promise rejected by wording" in log()[-1]


def test_a_promise_by_a_sub_agent_does_not_count(session):
    session.start()
    session.works()
    said = {"role": "assistant", "content": [{"type": "text", "text": DONE}]}
    session.write({"type": "assistant", "isSidechain": True, "message": said})
    assert session.stops("Two tests fail.").is_block


def test_a_promise_on_the_last_continuation_counts(session):
    session.start("--max-iterations", "1")
    assert session.stops("not yet").is_block
    session.works()
    assert "PROMISE_ACCEPTED" in session.stops(DONE).message


def test_a_rejected_promise_on_the_last_continuation_ends_the_loop_as_exhausted(session):
    session.start("--max-iterations", "0")
    assert "MAX_ITERATIONS_REACHED" in session.stops(DONE).message


@pytest.mark.parametrize(
    "text",
    [
        "I will NOT say <promise>DONE</promise>",
        "I will output <promise>DONE</promise> once the tests pass.",
        "Shall I say <promise>DONE</promise>?",
        "<promise> DONE </promise>",
        "<promise>done</promise>",
        "<promise>DONE</promise >",
        "<promise>NOT DONE</promise>",
        "DONE",
        "",
    ],
)
def test_text_that_only_resembles_the_promise_does_not_end_the_loop(session, text):
    session.start()
    session.works()
    assert session.stops(text).is_block


@pytest.mark.parametrize(
    "text", [DONE, "Everything passes. <promise>DONE</promise>", "```\n<promise>DONE</promise>\n```"]
)
def test_every_accepted_form_of_the_promise_ends_the_loop(session, text):
    session.start()
    session.works()
    assert not session.stops(text).is_block


def test_with_claims_the_promise_must_be_repeated(session):
    session.start("--claims", "2")
    session.works()
    answer = session.stops(DONE)
    assert answer.is_block
    assert answer.reason.startswith("This is claim 1 of 2")
    assert "PROMISE_ACCEPTED" in session.stops(DONE).message


def test_with_claim_anywhere_the_promise_counts_inside_a_sentence(session):
    session.start("--claim-anywhere")
    session.works()
    assert not session.stops("I will NOT say <promise>DONE</promise>").is_block


@pytest.mark.parametrize(
    "promise", ['say "hi"', "it's over", "*.py", "ALL TESTS PASS", "[a-z]+", "$(id)", "naïve ✓", "a\\b"]
)
def test_a_promise_is_taken_verbatim(session, promise):
    session.start("--completion-promise", promise)
    session.works()
    assert session.stops("<promise>DONE</promise>").is_block
    assert not session.stops(f"<promise>{promise}</promise>").is_block


def test_another_session_is_never_touched(session, sessions):
    session.start()
    stranger = sessions("another-session")
    answer = stranger.stops(DONE)
    assert (answer.out, answer.err) == ("", "")
    assert session.status() == "ACTIVE"


RUNNING = {"id": "b1", "type": "shell", "status": "running", "command": "make test"}
ENDED = {"id": "b2", "type": "shell", "status": "completed", "command": "make lint"}


def test_a_stop_while_background_tasks_are_running_is_allowed_and_not_counted(session, log):
    session.start("--max-iterations", "1")
    session.works()
    for _ in range(3):
        answer = session.stops("I wait for the tests.", background_tasks=[RUNNING, ENDED])
        assert not answer.is_block
        assert "1 background task is running" in answer.message
        assert "not counted" in log()[-1]
        assert session.status() == "ACTIVE"
    assert session.stops("They have passed.", background_tasks=[ENDED]).is_block, "the host came back"
    assert "PROMISE_ACCEPTED" in session.stops(DONE, background_tasks=[]).message


def test_a_promise_while_background_tasks_are_running_counts_once_they_have_ended(session):
    session.start()
    session.works()
    assert "PROMISE_ACCEPTED" not in session.stops(DONE, background_tasks=[RUNNING]).message
    assert "PROMISE_ACCEPTED" in session.stops("They have passed.", background_tasks=[ENDED]).message


@pytest.mark.parametrize("told", [None, [], {}, "none", 0, [ENDED]])
def test_without_running_background_tasks_a_stop_is_counted(session, told):
    session.start()
    assert session.stops("hm", background_tasks=told).is_block


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="who waits for a lock is read from /proc")
def test_two_stops_at_once_count_once(session, environment, workspace):
    """A check delays the first call until the second has started."""
    up, down = workspace.parent / "up", workspace.parent / "down"
    os.mkfifo(up)
    os.mkfifo(down)
    session.start("--max-iterations", "5", "--check", f"echo up > {up}; cat {down}")
    event = {"session_id": session.name, "transcript_path": str(session.transcript), "last_assistant_message": "hm"}

    def asked() -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-m", "ralph", "hook", "stop"]
        stop = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=workspace, env=environment)
        stop.stdin.write(json.dumps(event).encode())
        stop.stdin.close()
        return stop

    first = asked()
    assert up.read_text() == "up\n"
    second = asked()
    wait_for_lock_of(second, workspace)
    down.write_text("go on\n")
    answers = []
    for stop in (first, second):
        answers.append(json.loads(stop.stdout.read()))
        stop.stdout.close()
        assert stop.wait() == 0
    assert answers[0] == answers[1]
    assert answers[0]["decision"] == "block"
    assert "continuation 1 of 5" in answers[0]["systemMessage"]
    assert [row["type"] for row in session.journal].count("iteration_finished") == 1


def wait_for_lock_of(process, workspace):
    """Wait until the process waits for its lock: it has opened a folder of ralph's only for that."""
    while not any(is_read_in(workspace, one) for one in Path(f"/proc/{process.pid}/fd").iterdir()):
        assert process.poll() is None


def is_read_in(workspace, descriptor):
    with suppress(OSError):
        flags = (descriptor.parent.parent / "fdinfo" / descriptor.name).read_text().split()[3]
        is_place = int(flags, 8) & os.O_PATH  # the open files show it
        return not is_place and descriptor.is_dir() and os.readlink(descriptor).startswith(f"{workspace}/.ralph/")
    return False


def test_two_sessions_can_loop_at_the_same_time(session, sessions):
    other = sessions("another-session")
    session.start("--max-iterations", "1", task="first task")
    other.start("--completion-promise", "FERTIG", task="second task")
    assert "first task" in session.stops("hm").reason
    assert "second task" in other.stops(DONE).reason
    assert not session.stops("hm").is_block
    other.works()
    assert not other.stops("<promise>FERTIG</promise>").is_block
    assert (session.status(), other.status()) == ("MAX_ITERATIONS_REACHED", "PROMISE_ACCEPTED")


def test_without_a_loop_the_hook_prints_and_creates_nothing(session, workspace):
    answer = session.stops(DONE)
    assert (answer.out, answer.err) == ("", "")
    assert list(workspace.iterdir()) == []


def test_a_missing_transcript_does_not_end_the_loop(session, workspace):
    session.start()
    missing = {"transcript_path": "/nowhere/at/all.jsonl"}
    assert session.stops("working on it", **missing).is_block
    assert session.stops(None, **missing).is_block
    assert session.stops(DONE, **missing).is_block, "no work to be seen anywhere"
    (workspace / "new.txt").write_text("work\n")
    assert not session.stops(DONE, **missing).is_block, "the workspace has changed"


def test_a_transcript_that_is_written_late_does_not_end_the_loop(session):
    session.start()
    session.asks("the task")
    assert session.stops(None).is_block


def test_a_transcript_that_ends_in_a_tool_call_is_read(session):
    session.start()
    session.asks("the task")
    session.says("Let me look.")
    session.works()
    assert session.stops(None).is_block


def test_the_last_message_is_read_from_the_transcript_if_the_host_sends_none(session):
    session.start()
    session.asks("the task")
    session.works()
    session.says(DONE)
    assert not session.stops(None).is_block


def test_a_promise_that_was_made_before_the_loop_does_not_count(session):
    session.works()
    session.says(DONE)
    session.start()
    session.asks("the new task")
    assert session.stops(None).is_block


def test_work_that_was_done_before_the_loop_does_not_count(session):
    session.works(5)
    session.start()
    assert session.stops(DONE).is_block


def test_a_promise_in_the_prompt_does_not_count(session):
    session.start()
    session.works()
    session.asks("say <promise>DONE</promise> when done")
    assert session.stops(None).is_block


def test_tool_calls_of_a_sub_agent_are_not_counted(session):
    session.start()
    session.works(3, sidechain=True)
    assert session.stops(DONE).is_block


def test_a_promise_needs_the_minimum_number_of_tool_calls(session, log):
    session.start("--min-tool-calls", "3")
    session.works(2)
    assert session.stops(DONE).is_block
    assert "promise rejected by work" in log()[-1]
    session.works(1)
    assert not session.stops(DONE).is_block


@pytest.mark.parametrize(
    ("policy", "message"), [("accept", "PROMISE_ACCEPTED"), ("warn", "warning: Promise detected, but no tool calls")]
)
def test_a_promise_without_work_may_be_accepted(session, policy, message):
    session.start("--on-promise-no-work", policy)
    answer = session.stops(DONE)
    assert not answer.is_block
    assert message in answer.message


def test_with_ultrawork_every_continuation_starts_with_it(session):
    session.start("--ultrawork")
    assert session.stops("hm").reason.startswith("ultrawork\n\n")
    assert session.stops(DONE).reason.startswith("ultrawork\n\n")


def test_the_loop_is_found_from_any_folder_of_the_agent(session, workspace, tmp_path):
    session.start()
    deep = workspace / "a" / "b"
    deep.mkdir(parents=True)
    assert session.stops("hm", cwd=str(deep)).is_block
    assert session.stops("hm", cwd="/nowhere").is_block, "the process itself is still in the project"


def test_any_session_id_can_be_used_as_a_file_name(sessions, workspace):
    strange = sessions("../../so/strange id\n✓")
    strange.start()
    assert strange.stops("hm").is_block
    assert [path.parent for path in workspace.rglob("*.json") if path.name != "run.json"] == [workspace / ".ralph/hook"]


@pytest.mark.parametrize("damage", [b"", b"{", b"null", b"[]", b'{"session": 1}', b"\xff\xfe", b"x" * 100_000])
def test_unreadable_state_is_moved_aside_with_a_warning(session, workspace, damage):
    session.start()
    [state] = workspace.glob(".ralph/hook/*.json")
    state.write_bytes(damage)
    answer = session.stops("hm")
    assert not answer.is_block
    assert "cannot be read" in answer.message
    assert "cannot be read" in answer.err
    [aside] = workspace.glob(".ralph/hook/*.unreadable-*")
    assert aside.read_bytes() == damage
    assert session.stops("hm").out == "", "said once"


def test_a_second_unreadable_state_does_not_replace_the_first(session, workspace):
    for content in (b"one", b"two"):
        session.start()
        [state] = workspace.glob(".ralph/hook/*.json")
        state.write_bytes(content)
        session.stops("hm")
    kept = sorted(path.read_bytes() for path in workspace.glob(".ralph/hook/*.unreadable-*"))
    assert kept == [b"one", b"two"]


@pytest.mark.parametrize("stdin", ["", "not json", "[]", '{"session_id": 7}', '{"session_id": ""}', "{" * 5000])
def test_invalid_input_from_the_host_causes_no_traceback(session, ralph, stdin):
    session.start()
    result = ralph("hook", "stop", stdin=stdin)
    assert (result.code, result.out) == (0, "")
    assert "Traceback" not in result.err
    assert session.status() == "ACTIVE"


def test_input_that_ends_inside_a_character_is_accepted(session):
    session.start("--max-iterations", "5", task="mind the emoji")
    answer = session.stops(None, last_assistant_message="cut \ud83d")
    assert answer.is_block
    [finished] = [row for row in session.journal if row["type"] == "iteration_finished"]
    assert finished["data"]["record"]["turn"]["text"].startswith("cut ")


def test_a_loop_whose_journal_is_broken_lets_the_agent_stop_with_a_warning(session, workspace):
    session.start()
    [journal] = workspace.glob(".ralph/hook/runs/*/journal.ndjson")
    journal.unlink()
    journal.mkdir()
    answer = session.stops("hm")
    assert not answer.is_block
    assert "cannot judge" in answer.message


def test_a_log_that_cannot_be_written_changes_nothing(session, workspace):
    session.start()
    (workspace / ".ralph/hook/log").unlink()
    (workspace / ".ralph/hook/log").mkdir()
    assert session.stops("hm").is_block


def test_the_journal_has_the_events_of_an_ordinary_run(session):
    session.start("--max-iterations", "3")
    session.stops("hm")
    session.stops(DONE)
    session.works()
    session.stops(DONE)
    kinds = [row["type"] for row in session.journal]
    assert kinds == [
        "run_started",
        "ralph_iteration_started",
        "iteration_finished",
        "ralph_iteration_started",
        "iteration_finished",
        "claim_rejected",
        "ralph_iteration_started",
        "iteration_finished",
        "ralph_converged",
        "run_finished",
    ]
    assert [row["seq"] for row in session.journal] == list(range(1, len(kinds) + 1))
    finished = session.journal[-1]["data"]
    assert (finished["outcome"], finished["iterations"], finished["exit_code"]) == ("done", 3, 0)


def test_keys_are_redacted_in_the_journal(session, workspace):
    key = "ghp_" + "a1B2" * 9
    session.start()
    session.stops(f"I found {key} in the logs.")
    assert key not in next(workspace.glob(".ralph/hook/runs/*/journal.ndjson")).read_text()


def test_the_task_is_repeated_after_the_context_was_compacted(session, environment, workspace):
    session.start(task="the whole task")
    event = {"session_id": session.name, "cwd": str(workspace), "hook_event_name": "SessionStart", "source": "compact"}
    code = "import sys; from ralph.hooks.stop import main; sys.exit(main(['remind', 'claude']))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(event),
        env=environment,
        cwd=workspace,
        capture_output=True,
        text=True,
    )
    context = json.loads(run.stdout)["hookSpecificOutput"]["additionalContext"]
    assert "the whole task" in context
    assert "<promise>DONE</promise>" in context
