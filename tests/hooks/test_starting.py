"""Starting, listing and cancelling loops inside a session."""

import json
from pathlib import Path

import pytest

from ralph.errors import UserError
from ralph.hooks.hosts import LOOP_TEXT as LOOP
from ralph.hooks.starting import OPTIONS, command_in
from ralph.options.command_options import parse_prompt_line


def test_start_prints_the_agents_instructions(session):
    result = session.start("--completion-promise", "ALL DONE", task="fix\nthe 'tests'")
    assert result.out.startswith("fix\nthe 'tests'\n\n")
    assert "<promise>ALL DONE</promise>" in result.out
    assert "ACTIVE" in result.err


def test_a_second_loop_in_a_session_needs_force(session, log):
    session.start(task="the first")
    result = session.try_start(task="the second")
    assert result.code == 2
    assert "a loop is active in this session" in result.err
    assert "the first" in result.err
    assert "--force" in result.err
    session.start("--force", task="the second")
    assert "the second" in session.stops("hm").reason
    assert any("CANCELLED: replaced" in line for line in log())


def test_a_loop_may_follow_one_that_has_ended(session):
    session.start("--max-iterations", "0")
    session.stops("hm")
    session.start("--max-iterations", "1", task="another")
    assert "another" in session.stops("hm").reason


@pytest.mark.parametrize(
    ("words", "task", "complaint"),
    [
        ((), "", "the task is empty"),
        ((), "  \n", "the task is empty"),
        (("--completion-promise", " "), "x", "until"),
        (("--max-iterations", "-1"), "x", "maximumIterations"),
        (("--max-iterations", "1", "--claims", "3"), "x", "3 claims in a row need as many iterations"),
        (("--on-promise-no-work", "perhaps"), "x", "perhaps"),
        (("--nonsense",), "x", "--nonsense"),
        (("two",), "words", "expected one task, got 2"),
    ],
)
def test_invalid_arguments_start_no_loop(session, workspace, words, task, complaint):
    result = session.try_start(*words, task=task)
    assert result.code == 2
    assert complaint in result.err
    assert "Traceback" not in result.err
    assert not list(workspace.glob(".ralph/hook/*.json"))


def test_without_a_session_no_loop_starts(ralph, workspace):
    result = ralph("hook", "start", "a task")
    assert result.code == 2
    assert "--session ID" in result.err


def test_the_default_session_is_that_of_the_calling_agent(ralph, workspace):
    assert ralph("hook", "start", "a task", CLAUDE_CODE_SESSION_ID="around").code == 0
    assert ralph("hook", "status").out.startswith("around  ACTIVE  0 of 100 continuations  a task")
    assert ralph("hook", "cancel", CLAUDE_CODE_SESSION_ID="around").out == "around  CANCELLED\n"


@pytest.mark.parametrize(
    ("agent", "place"),
    [
        ("claude", ".claude/projects/-w/{}.jsonl"),
        ("codex", ".codex/sessions/2026/11/15/rollout-2026-11-15T09-54-54-{}.jsonl"),
        ("gemini", ".gemini/tmp/w/chats/session-2026-11-15T09-55-{:.8}.jsonl"),
    ],
)
def test_tool_calls_before_the_loop_do_not_count(ralph, environment, session, agent, place):
    session.works(3)
    own = Path(environment["HOME"], place.format(session.name))
    own.parent.mkdir(parents=True)
    session.transcript = session.transcript.rename(own)
    assert ralph("hook", "start", "--session", session.name, "--agent", agent, "a task").code == 0
    assert session.stops("<promise>DONE</promise>").is_block
    session.works(1)
    assert not session.stops("<promise>DONE</promise>").is_block


def test_an_agent_whose_loop_was_cancelled_can_stop(session, ralph, log):
    session.start()
    assert session.stops("hm").is_block
    assert ralph("hook", "cancel", "--session", session.name).out == f"{session.name}  CANCELLED\n"
    assert session.stops("hm").out == ""
    assert session.status() == "CANCELLED"
    assert "CANCELLED" in log()[-1]
    finished = session.journal[-1]["data"]
    assert (finished["outcome"], finished["iterations"], finished["exit_code"]) == ("interrupted", 1, 130)


def test_cancel_without_a_session_ends_the_only_loop(session, ralph):
    session.start()
    assert ralph("hook", "cancel").code == 0


def test_cancel_must_name_one_of_several_loops(session, sessions, ralph):
    session.start()
    sessions("two").start()
    result = ralph("hook", "cancel")
    assert result.code == 2
    assert "--all" in result.err
    assert ralph("hook", "cancel", "--all").code == 0
    assert (session.status(), sessions("two").status()) == ("CANCELLED", "CANCELLED")


def test_nothing_to_cancel_is_reported(ralph, workspace):
    result = ralph("hook", "cancel")
    assert result.code == 2
    assert "no loop is active" in result.err


def test_status_lists_active_and_ended_loops(session, sessions, ralph):
    session.start("--max-iterations", "0", task="the first")
    session.stops("hm")
    sessions("two").start(task="the second")
    shown = ralph("hook", "status").out.splitlines()
    assert [line.split("  ")[1] for line in shown] == ["ACTIVE", "MAX_ITERATIONS_REACHED"]
    rows = [json.loads(line) for line in ralph("hook", "status", "--json").out.splitlines()]
    assert [(row["status"], row["task"]) for row in rows] == [
        ("ACTIVE", "the second"),
        ("MAX_ITERATIONS_REACHED", "the first"),
    ]


def test_status_without_a_loop_is_not_an_error(ralph, workspace):
    result = ralph("hook", "status")
    assert (result.code, result.out) == (0, "")
    assert list(workspace.iterdir()) == []


def test_wrong_usage_of_a_hook_command_is_refused(ralph, workspace):
    result = ralph("hook", "stop", "--nonsense")
    assert result.code == 2
    assert "usage: ralph hook stop" in result.err


def test_only_the_user_can_read_the_files_of_a_loop(session, workspace):
    session.start()
    session.stops("hm")
    assert (workspace / ".ralph/hook").stat().st_mode & 0o077 == 0


def test_the_commands_explain_themselves(ralph, workspace):
    assert "/ralph-loop" in ralph("hook", "--help").out
    for name in ("install", "uninstall", "start", "stop", "cancel", "status"):
        assert ralph("hook", name, "--help").code == 0


def test_the_help_states_the_defaults_of_loops_in_a_session(ralph, session, workspace):
    said = " ".join(ralph("hook", "start", "--help").out.split())
    session.start()
    [order] = workspace.glob(".ralph/hook/runs/*/run.json")
    settings = json.loads(order.read_text())["settings"]
    assert f"(`promise`: continuations; `supervise`: attempts) (default: {settings['maximumIterations']})" in said
    assert f"credible claim needs (default: {settings['minToolCalls']})" in said
    assert "loop: " not in said, "that is the default of another command"


def test_a_loop_is_refused_if_its_order_cannot_be_kept_outside_of_the_workspace(ralph, environment, tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused = ralph("hook", "start", "--session", "s", "fix the docs", XDG_STATE_HOME=str(tmp_path / "file"))
    assert (refused.code, "XDG_STATE_HOME" in refused.err) == (2, True), refused.err


TASKS = [
    ('"fix the tests"', "fix the tests", {}),
    ("fix the tests", "fix the tests", {}),
    ("'fix the \"tests\"'", 'fix the "tests"', {}),
    ('"say \\"hi\\""', 'say "hi"', {}),
    ('"fix" --max-iterations 3', "fix", {"maximum_iterations": 3}),
    ("fix it --max-iterations=3", "fix it", {"maximum_iterations": 3}),
    ("'fix it' --max-iterations 3 --force", "fix it", {"maximum_iterations": 3, "force": True}),
    ('"x" --completion-promise "ALL DONE"', "x", {"completion_promise": "ALL DONE"}),
    ("x --completion-promise it's", "x", {"completion_promise": "it's"}),
    ('"x" --check "pytest -q" --check "ruff check"', "x", {"check": ["pytest -q", "ruff check"]}),
    ('"x" --on-promise-no-work warn', "x", {"on_promise_no_work": "warn"}),
    ("don't stop, it's fine", "don't stop, it's fine", {}),
    ('"a" and "b"', '"a" and "b"', {}),
    ('add an option --verbose to "x"', 'add an option --verbose to "x"', {}),
    ("$(rm -rf /) `id` ; | & > {{x}} $& !x", "$(rm -rf /) `id` ; | & > {{x}} $& !x", {}),
    ('"line one\n\n  line two\ttab"', "line one\n\n  line two\ttab", {}),
    ("“curly quotes” --max-iterations 2", "curly quotes", {"maximum_iterations": 2}),
    ('"C:\\new\\dir"', "C:\\new\\dir", {}),
    ("", "", {}),
]


@pytest.mark.parametrize(("text", "task", "values"), TASKS)
def test_the_task_is_the_text_between_the_options(text, task, values):
    assert parse_prompt_line(text, OPTIONS) == (task, values)


@pytest.mark.parametrize(
    "text",
    [
        '"x" --max-iteration 5',
        '"x" --max-iterations many',
        "--max-iterations 3 x y",
        '"x" --on-promise-no-work never',
        '"x" --nonsense',
    ],
)
def test_a_prompt_line_that_cannot_be_parsed_is_an_error(text):
    with pytest.raises(UserError):
        parse_prompt_line(text, OPTIONS)


@pytest.mark.parametrize(
    ("prompt", "name", "rest"),
    [
        ('/ralph-loop "x"', "ralph-loop", '"x"'),
        ('/ralph:ralph-loop "x"', "ralph-loop", '"x"'),
        ("/ulw-loop fix it", "ulw-loop", "fix it"),
        ("/cancel-ralph", "cancel-ralph", ""),
        ("cancel-ralph\n", "cancel-ralph", ""),
        ('ralph-loop "x"', "ralph-loop", '"x"'),
        ("ralph-loop --force 'x'", "ralph-loop", "--force 'x'"),
        ('  /ralph-loop\n"x"', "ralph-loop", '"x"'),
        (f'{LOOP}\n\n/ralph-loop "x"', "ralph-loop", '"x"'),
    ],
)
def test_a_command_is_recognised_at_the_start_of_a_prompt(prompt, name, rest):
    assert command_in(prompt) == (name, rest)


@pytest.mark.parametrize(
    "prompt",
    [
        "what is /ralph-loop?",
        "ralph-loop is a nice thing",
        "/ralph-loops",
        "/ralph-loop-x",
        "cancel-ralph does what?",
        "You attempted to end the loop. Original task:\n/ralph-loop x",
        "",
    ],
)
def test_a_sentence_about_a_command_is_not_a_command(prompt):
    assert command_in(prompt) is None
