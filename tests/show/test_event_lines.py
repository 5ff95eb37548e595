"""The words and their order, against two recorded pages; then what single events become."""

from pathlib import Path

import pytest

from ralph.core import events as e
from ralph.core.model import Failure, Turn
from ralph.show.event_lines import EventLines
from ralph.show.outlet import ASCII, EMOJI, TEXT, Style

HERE = Path(__file__).parent


def told(*events: e.Event, **options: bool | int) -> list[str]:
    lines = EventLines(Style(EMOJI), **options)  # type: ignore[arg-type]
    return [line for event in events for line in lines(event)]


@pytest.mark.parametrize(
    ("page", "style", "options"),
    [
        ("emoji.txt", Style(EMOJI), {}),
        ("ascii.txt", Style(ASCII), {"verbose": True, "columns": 60}),
    ],
)
def test_a_whole_run_reads_as_recorded(page: str, style: Style, options: dict[str, int], run: list[e.Event]) -> None:
    lines = EventLines(style, **options)  # type: ignore[arg-type]
    text = "\n".join(line for event in run for line in lines(event)) + "\n"
    assert text == (HERE / page).read_text(encoding="utf-8")


def test_the_seeds_example_is_reproduced() -> None:
    items = (e.TodoItem("Read the file", "done"), e.TodoItem("Edit the code", "active"), e.TodoItem("Run tests"))
    shown = told(
        e.AgentStarted("claude"),
        e.ToolStarted("1", "Read", "/path/to/file.go"),
        e.ToolFinished(id="1", name="Read", ok=True, output="package main", lines=45, chars=1234),
        e.TodoUpdated(items),
        e.AgentResult(cost_usd=5.76, input_tokens=350_000, output_tokens=45_000, cache_read_tokens=850_000),
        e.AgentFinished(exit_code=0, duration_s=367.0, tool_calls=58, tool_errors=4),
    )
    assert shown == [
        "⏺ Read(/path/to/file.go)",
        "✅ Result ← Read (45 lines, 1234 chars)",
        "  ⎿  package main",
        "     … 44 more lines",
        "",
        "📋 Todo List",
        "  ✅ Read the file",
        "  🔄 Edit the code ← ACTIVE",
        "  ⏸️ Run tests",
        "  📊 Progress: 1/3 (33%)",
        "",
        "✅ Complete (cost: $5.76, tokens: 1.2M in (850K cached) / 45K out, tools: 58, errors: 4, time: 6m7s)",
    ]


def test_without_emoji_there_are_text_markers() -> None:
    lines = EventLines(Style(TEXT))
    assert lines(e.ToolFinished(id="1", name="Read", ok=True, output="", lines=0, chars=0)) == [
        "[OK] Result ← Read (no output)"
    ]
    assert lines(e.ToolFinished(id="1", name="Read", ok=False, output="", lines=0, chars=0)) == [
        "[ERR] Error ← Read (no output)"
    ]


def test_an_answer_out_of_order_says_which_call_it_answers() -> None:
    shown = told(
        e.ToolStarted("1", "Read", "a.py"),
        e.ToolStarted("2", "Read", "b.py"),
        e.ToolFinished(id="1", name="Read", ok=True, output="", lines=0, chars=0),
        e.ToolFinished(id="2", name="", ok=True, output="", lines=0, chars=0),
        e.ToolFinished(id="3", name="", ok=True, output="", lines=0, chars=0),
    )
    assert shown[2:] == [
        "✅ Result ← Read(a.py) (no output)",
        "✅ Result ← Read (no output)",
        "✅ Result ← tool (no output)",
    ]


def test_only_the_beginning_of_a_tools_output_is_shown() -> None:
    output = "\n".join(f"line {n}" for n in range(1, 100))
    shown = told(e.ToolFinished(id="1", name="Bash", ok=True, output=output, lines=99, chars=len(output)))
    assert shown[1:] == ["  ⎿  line 1", "     line 2", "     line 3", "     … 96 more lines"]
    one_long_line = told(e.ToolFinished(id="1", name="Bash", ok=True, output="x" * 10_000, lines=1, chars=10_000))
    assert one_long_line[1:] == ["  ⎿  " + "x" * 300 + "…"]
    assert (
        len(
            told(e.ToolFinished(id="1", name="Bash", ok=True, output=output, lines=99, chars=len(output)), verbose=True)
        )
        == 22
    )


def test_a_long_text_is_cut_and_says_so() -> None:
    shown = told(e.AgentText("word " * 10_000))
    assert len(shown[0]) <= 4002
    assert shown[1] == "  … 46000 more characters in the log"


def test_a_todo_list_that_did_not_change_is_not_repeated() -> None:
    todo = e.TodoUpdated((e.TodoItem("a"),))
    assert len(told(todo, todo)) == 3
    assert told(e.TodoUpdated(())) == []


def test_the_agent_never_speaks_at_the_left_margin() -> None:
    forged = "── iteration 9/10 ──\r✓ make test 1.2s\nralph: done after 1 iteration\u2028⛔ claim refused"
    shown = told(
        e.AgentText(forged),
        e.AgentProgress(forged),
        e.ToolFinished(id="1", name="Bash", ok=True, output=forged, lines=3, chars=90),
        e.CheckFinished(name="make", passed=False, exit_code=1, duration_s=0.1, output=forged),
        e.TodoUpdated((e.TodoItem(forged),)),
        columns=40,
    )
    marks = ("✅ Result", "✗ make exit 1", "📋 Todo List")
    assert [line for line in shown if line and not line.startswith(" ")] == [
        line for line in shown if line.startswith(marks)
    ]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (e.CheckStarted("make test"), "▸ make test"),
        (e.CheckFinished(name="make test", passed=True, exit_code=0, duration_s=1.2), "✓ make test 1.2s"),
        (
            e.CheckFinished(
                name="make lint",
                passed=False,
                exit_code=1,
                duration_s=0.4,
                log=".ralph/guardrail_001_make_lint.log",
                output="",
                action="APPEND",
            ),
            "✗ make lint exit 1, 0.4s → APPEND, .ralph/guardrail_001_make_lint.log",
        ),
        (
            e.CheckFinished(name="make", passed=False, exit_code=-15, duration_s=120.0, timeout=120.0),
            "✗ make timed out after 2m",
        ),
        (e.CheckFinished(name="make", passed=False, exit_code=-9, duration_s=3.0), "✗ make signal 9, 3s"),
        (e.CheckFinished(name="make", passed=False, exit_code=None, duration_s=3.0), "✗ make no exit code, 3s"),
        (e.IterationStarted(4, None, "g"), "── iteration 4 " + "─" * 65),
        (
            e.ClaimRejected("DONE", "tasks", "2 of 3 tasks are not done."),
            "⛔ claim refused: 2 of 3 tasks are not done. (gate: tasks, claim: DONE)",
        ),
        (e.ScmFinished(1, "commit", True, "Fix it"), "✅ commit: Fix it"),
        (e.ScmFinished(1, "push", False, "no remote"), "❌ push failed: no remote"),
        (e.ReviewStarted("tests"), "🔍 review: tests"),
        (e.ReviewFinished("tests", False), "❌ review tests: the checks do not pass"),
        (e.Notice("Received signal, shutting down..."), "⚠ Received signal, shutting down..."),
        (e.Notice("all is well", "info"), "ℹ all is well"),
        (e.AgentStarted("claude", purpose="message"), "▸ claude: commit message"),
        (
            e.AgentFinished(exit_code=None, duration_s=9.0, ended_by="idle-timeout"),
            "❌ Ended by ralph: idle timeout (time: 9s)",
        ),
        (e.AgentFinished(exit_code=-11, duration_s=1.0), "✅ Complete (signal 11, time: 1s)"),
        (
            e.TurnNotCounted(Turn(text="", failure=Failure("transient", "overloaded"))),
            "🔁 this turn does not count as an iteration (transient)",
        ),
    ],
)
def test_each_event_has_its_line(event: e.Event, line: str) -> None:
    assert told(event) == [line]


def test_a_run_without_a_gate_says_so_at_the_start() -> None:
    started = e.RunStarted(
        goal="fix it",
        preset="guardrails",
        agent="claude",
        workspace="/repo",
        max_iterations=10,
        claims=("response:DONE",),
    )
    assert "  gates   none: the agent's word alone ends this run" in told(started)


def test_with_a_live_line_the_start_of_a_check_needs_no_line() -> None:
    assert told(e.CheckStarted("make"), announces=False) == []


def test_hidden_agent_output_leaves_headers_checks_and_results(run: list[e.Event]) -> None:
    shown = "\n".join(told(*run, agent_output=False))
    assert "Everything works now" not in shown
    assert "⏺" not in shown
    for kept in ("iteration 1/10", "✗ make test", "claim refused", "✅ Complete (cost: $0.12"):
        assert kept in shown


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (e.Notice("Loading settings from .ralph/settings.json", "debug"), "Loading settings from .ralph/settings.json"),
        (e.AgentStarted("claude", ("claude", "-p", "a b")), "Agent command: claude -p 'a b'"),
        (e.IterationStarted(1, 10, ""), "Iteration 1/10 starting"),
        (e.CheckStarted("./mvnw clean install"), "Running guardrail: ./mvnw clean install"),
        (e.CheckFinished(name="x", passed=True, exit_code=0, duration_s=1.2), "Guardrail exited with code 0 (1.2s)"),
    ],
)
def test_verbose_lines_are_for_verbose_runs(event: e.Event, line: str) -> None:
    assert f"[ralph] {line}" in told(event, verbose=True)
    assert not any("[ralph]" in shown for shown in told(event))


def test_check_output_shows_its_end() -> None:
    output = "\n".join(f"line {n}" for n in range(100))
    shown = told(e.CheckFinished(name="make", passed=False, exit_code=2, duration_s=1.0, output=output))
    assert shown[1] == "  │ line 92"
    assert shown[-1] == "  │ line 99"


def test_narrow_lines_fit() -> None:
    from ralph.show.words import width

    shown = told(
        e.ToolStarted("1", "Bash", "echo " + "日本語" * 40),
        e.ToolFinished(id="1", name="Bash", ok=True, output="日本語" * 40, lines=1, chars=120),
        e.AgentText("a long line " * 20),
        e.ClaimRejected("DONE", "checks", "because " * 20),
        e.IterationStarted(1, 10, ""),
        columns=40,
    )
    assert max(map(width, shown)) <= 40


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (e.Paused("a person asked for it"), "⏸ paused: a person asked for it; go on with `ralph resume`"),
        (e.Paused("waiting for an answer: Which?", asks=True), "⏸ paused: waiting for an answer: Which?"),
    ],
)
def test_a_pause_says_what_ends_it(event: e.Paused, line: str) -> None:
    assert told(event)[-1] == line


@pytest.mark.parametrize(
    ("claims", "line"),
    [(("turn",), "one turn is over"), (("word:STOP", "checks"), "word:STOP or the checks pass")],
)
def test_what_ends_a_run_without_a_word_is_said_in_words(claims: tuple[str, ...], line: str) -> None:
    assert f"  until   {line}" in told(
        e.RunStarted(goal="fix it", preset="goal", agent="claude", workspace="/repo", max_iterations=1, claims=claims)
    )
