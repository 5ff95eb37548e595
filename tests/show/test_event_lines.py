"""The lines of a whole run, compared with two recordings, and the lines of single events."""

import io
from pathlib import Path

import pytest

from ralph.core import events as e
from ralph.core.model import Check, Failure, Iteration, Outcome, Turn
from ralph.show.event_lines import EventLines
from ralph.show.outlet import ASCII, GLYPHS, RESET, TEXT, Style
from ralph.show.screen import MAX_RATE, make_screen
from ralph.show.turn_lines import LineLimits

HERE = Path(__file__).parent


def told(*events: e.Event, **options: bool | int) -> list[str]:
    lines = EventLines(Style(GLYPHS), **options)  # type: ignore[arg-type]
    return [line for event in events for line in lines(event)]


@pytest.mark.parametrize(
    ("page", "style", "options"),
    [
        ("glyphs.txt", Style(GLYPHS), {}),
        ("ascii.txt", Style(ASCII), {"verbose": True, "columns": 60}),
    ],
)
def test_a_whole_run_reads_as_recorded(page: str, style: Style, options: dict[str, int], run: list[e.Event]) -> None:
    lines = EventLines(style, **options)  # type: ignore[arg-type]
    text = "\n".join(line for event in run for line in lines(event)) + "\n"
    assert text == (HERE / page).read_text(encoding="utf-8")


def test_each_tool_call_of_a_turn_is_one_line() -> None:
    items = (e.TodoItem("Read the file", "done"), e.TodoItem("Edit the code", "active"), e.TodoItem("Run tests"))
    later = (items[0], e.TodoItem("Edit the code", "done"), e.TodoItem("Run tests", "active"))
    edit = e.FileEdit("    return text[0]", "    if not text:\n        return None", 1, 2)
    shown = told(
        e.AgentStarted("claude"),
        e.ToolStarted("1", "Read", "/path/to/file.go"),
        e.ToolFinished(id="1", name="Read", ok=True, output="package main", lines=45, chars=1234),
        e.TodoUpdated(items),
        e.ToolStarted("2", "Edit", "parser.py", edit),
        e.ToolFinished(id="2", name="Edit", ok=True, output="The file was changed", lines=1, chars=20),
        e.TodoUpdated(later),
        e.AgentResult(cost_usd=5.76, input_tokens=350_000, output_tokens=45_000, cache_read_tokens=850_000),
        e.AgentFinished(exit_code=0, duration_s=367.0, tool_calls=58, tool_errors=4),
    )
    assert shown == [
        "  • Read(/path/to/file.go)  45 lines",
        "",
        "  todo 1/3",
        "    ✓ Read the file",
        "    ▸ Edit the code",
        "    · Run tests",
        "",
        "  • Edit(parser.py)  +2 -1",
        "      -     return text[0]",
        "      +     if not text:",
        "      +         return None",
        "",
        "  todo 2/3  ▸ Run tests",
        "",
        "turn ended · 6m7s · 58 tool calls, 4 failed · $5.76 · 1.2M in (850K cached), 45K out",
    ]


def test_without_emoji_there_are_text_markers() -> None:
    lines = EventLines(Style(TEXT))
    assert lines(e.ToolFinished(id="1", name="Read", ok=False, output="", lines=0, chars=0)) == ["  [ERR] Read  failed"]
    assert lines(e.CheckFinished(name="make", passed=True, exit_code=0, duration_s=1.0))[-1] == "┃ [OK] make  1s"


def test_parallel_calls_are_shown_with_their_own_input() -> None:
    shown = told(
        e.ToolStarted("1", "Read", "a.py"),
        e.ToolStarted("2", "Read", "b.py"),
        e.ToolFinished(id="1", name="Read", ok=True, output="", lines=0, chars=0),
        e.ToolFinished(id="2", name="", ok=True, output="x", lines=1, chars=1),
        e.ToolFinished(id="3", name="", ok=True, output="", lines=0, chars=0),
    )
    assert shown == ["  • Read(a.py)", "  • Read(b.py)  1 line", "  • tool"]


def test_an_unfinished_call_is_shown_at_the_end_of_the_turn() -> None:
    shown = told(
        e.ToolStarted("1", "Bash", "sleep 1000"),
        e.AgentFinished(exit_code=None, duration_s=9.0, ended_by="idle-timeout"),
    )
    assert shown == ["  • Bash(sleep 1000)  not finished", "", "✗ turn ended by ralph: idle timeout · 9s · 1 tool call"]


def test_the_lines_of_endlessly_nested_calls_do_not_grow() -> None:
    nested = (e.ToolStarted(str(at), "Agent", "again", None, str(at - 1)) for at in range(2000))
    assert max(map(len, told(*nested))) < 500


def test_calls_of_a_sub_agent_are_below_the_call_that_started_it() -> None:
    shown = told(
        e.ToolStarted("a", "Agent", "Find the users"),
        e.ToolStarted("a1", "Bash", "ls src", None, "a"),
        e.ToolFinished(id="a1", name="Bash", ok=True, output="one.py", lines=1, chars=6),
        e.AgentProgress("One of them is cli.py."),
        e.ToolFinished(id="a", name="Agent", ok=True, output="cli.py", lines=1, chars=6),
    )
    assert shown == [
        "  • Agent(Find the users)",
        "    • Bash(ls src)  1 line",
        "      └ one.py",
        "  · One of them is cli.py.",
        "  • Agent(Find the users)  1 line",
    ]


def test_paths_are_relative_to_the_workspace() -> None:
    started = e.RunStarted(
        goal="g", preset="checks", agent="claude", workspace="/work/repo", max_iterations=1, worktree="/cache/tree"
    )
    for given, shown in {
        "/cache/tree/src/a.py": "src/a.py",
        "cd /cache/tree && make -C /cache/tree/lib": "make -C lib",
        "/cache/tree": ".",
        "/cache/trees/a.py": "/cache/trees/a.py",
    }.items():
        assert (
            told(started, e.ToolStarted("1", "X", given), e.ToolFinished(id="1", name="X", ok=True))[-1]
            == f"  • X({shown})"
        )


def test_the_end_of_a_commands_output_is_shown() -> None:
    output = "\n".join(f"line {n}" for n in range(1, 100))
    shown = told(e.ToolFinished(id="1", name="Bash", ok=True, output=output, lines=99, chars=len(output)))
    assert shown == ["  • Bash  99 lines", "    └ line 97", "      line 98", "      line 99"]
    one_long_line = told(e.ToolFinished(id="1", name="Bash", ok=True, output="x" * 10_000, lines=1, chars=10_000))
    assert one_long_line[1:] == ["    └ …" + "x" * 300]
    assert (
        len(
            told(e.ToolFinished(id="1", name="Bash", ok=True, output=output, lines=99, chars=len(output)), verbose=True)
        )
        == 21
    )
    assert told(e.ToolFinished(id="1", name="Read", ok=True, output=output, lines=99, chars=len(output))) == [
        "  • Read  99 lines"
    ]


def test_the_limits_for_a_tools_output_can_be_set() -> None:
    lines = EventLines(Style(GLYPHS), limits=LineLimits(output_lines=1, output_chars=5))
    assert lines(e.ToolFinished(id="1", name="Bash", ok=True, output="one\ntwo three", lines=2, chars=13)) == [
        "  • Bash  2 lines",
        "    └ …three",
    ]
    none = EventLines(Style(GLYPHS), limits=LineLimits(output_lines=0))
    assert none(e.ToolFinished(id="1", name="Bash", ok=True, output="one", lines=1, chars=3)) == ["  • Bash  1 line"]


def test_a_large_edit_shows_as_many_removed_as_added_lines() -> None:
    edit = e.FileEdit("\n".join("abcdefgh"), "\n".join("ABCDEFGH"), 80, 90)
    shown = told(e.ToolStarted("1", "Edit", "f", edit), e.ToolFinished(id="1", name="Edit", ok=True))
    signs = [line.strip()[:3] for line in shown[1:]]
    assert signs == ["- a", "- b", "- c", "+ A", "+ B", "+ C", "… 1"]
    assert shown[-1].strip() == "… 164 more lines"


def test_a_long_text_is_cut_and_says_so() -> None:
    shown = told(e.AgentText("word " * 10_000))
    assert len(shown[0]) <= 4002
    assert shown[1] == "  … 46000 more characters in the log"


def test_a_todo_list_that_did_not_change_is_not_repeated() -> None:
    todo = e.TodoUpdated((e.TodoItem("a"),))
    assert told(todo, todo) == ["  todo 0/1", "    · a"]
    assert told(e.TodoUpdated(())) == []


def test_everything_that_agents_say_is_indented() -> None:
    forged = "── iteration 9/10 ──\r✓ make test 1.2s\nralph: done after 1 iteration\u2028⛔ claim refused"
    shown = told(
        e.AgentText(forged),
        e.AgentProgress(forged),
        e.ToolFinished(id="1", name="Bash", ok=True, output=forged, lines=3, chars=90),
        e.CheckFinished(name="make", passed=False, exit_code=1, duration_s=0.1, output=forged),
        e.TodoUpdated((e.TodoItem(forged),)),
        columns=40,
    )
    marks = ("┃ ✗ make", "┃   ")
    assert [line for line in shown if line and not line.startswith(" ")] == [
        line for line in shown if line.startswith(marks)
    ]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (e.CheckStarted("make test"), "┃ ▸ make test"),
        (e.CheckFinished(name="make test", passed=True, exit_code=0, duration_s=1.2), "┃ ✓ make test  1.2s"),
        (e.CheckFinished(name="make lint", passed=False, exit_code=1, duration_s=0.4), "┃ ✗ make lint  exit 1, 0.4s"),
        (
            e.CheckFinished(name="make", passed=False, exit_code=-15, duration_s=120.0, timeout=120.0),
            "┃ ✗ make  timed out after 2m",
        ),
        (e.CheckFinished(name="make", passed=False, exit_code=-9, duration_s=3.0), "┃ ✗ make  signal 9, 3s"),
        (e.CheckFinished(name="make", passed=False, exit_code=None, duration_s=3.0), "┃ ✗ make  no exit code, 3s"),
        (e.IterationStarted(4, None, "g"), "── iteration 4 " + "─" * 65),
        (
            e.ClaimRejected("DONE", "tasks", "2 of 3 tasks are not done."),
            "⊘ claim refused: DONE: tasks: 2 of 3 tasks are not done.",
        ),
        (e.ScmFinished(1, "commit", True, "Fix it"), "✓ commit: Fix it"),
        (e.ScmFinished(1, "push", False, "no remote"), "✗ push failed: no remote"),
        (e.ReviewStarted("tests"), "◎ review: tests"),
        (
            e.ReviewFinished("tests", False, "codex", "no test of zero"),
            "✗ tests review by codex: changes: no test of zero",
        ),
        (e.Notice("Received signal, shutting down..."), "! Received signal, shutting down..."),
        (e.Notice("all is well", "info"), "i all is well"),
        (e.AgentStarted("claude", purpose="message"), "▸ claude: commit message"),
        (
            e.AgentFinished(exit_code=None, duration_s=9.0, ended_by="idle-timeout"),
            "✗ turn ended by ralph: idle timeout · 9s",
        ),
        (e.AgentFinished(exit_code=-11, duration_s=1.0), "turn ended · signal 11 · 1s"),
        (
            e.TurnNotCounted(Turn(text="", failure=Failure("transient", "overloaded"))),
            "↻ this turn does not count as an iteration (transient)",
        ),
    ],
)
def test_each_event_has_its_line(event: e.Event, line: str) -> None:
    assert told(event) == [line]


def test_the_header_says_if_nothing_checks_the_agents_claim() -> None:
    started = e.RunStarted(
        goal="fix it",
        preset="guardrails",
        agent="claude",
        workspace="/repo",
        max_iterations=10,
        claims=("response:DONE",),
    )
    assert "  gates      none: the agent's word alone ends this run" in told(started)


def test_with_a_live_line_the_start_of_a_check_is_not_printed() -> None:
    assert told(e.CheckStarted("make"), announces=False) == []


def test_without_agent_output_headers_checks_and_results_remain(run: list[e.Event]) -> None:
    shown = "\n".join(told(*run, agent_output=False))
    assert "Everything works now" not in shown
    assert "•" not in shown
    for kept in ("iteration 1/10", "✗ make test", "but a check failed", "turn ended · 1m2s"):
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


def test_a_failed_check_says_where_its_log_is() -> None:
    shown = told(
        e.CheckFinished(
            name="make lint",
            passed=False,
            exit_code=1,
            duration_s=0.4,
            log=".ralph/guardrail_001_make_lint.log",
            output="",
            action="APPEND",
        )
    )
    assert shown == ["┃ ✗ make lint  exit 1, 0.4s", "┃   → .ralph/guardrail_001_make_lint.log"]


VERDICTS = [
    ((), (), "┃ · not done yet: no claim"),
    ((True,), (), "┃ · not done yet: the check passed, but no claim"),
    ((True, False, False), (), "┃ ✗ not done: 2 of 3 checks failed"),
    ((True, True), ("tasks",), "┃ ⊘ not done: the agent claimed DONE, but not every task is done"),
    (
        (False, True),
        ("checks", "tasks"),
        "┃ ⊘ not done: the agent claimed DONE, but a check failed and not every task is done",
    ),
]


@pytest.mark.parametrize(("passed", "refused", "line"), VERDICTS)
def test_each_iteration_ends_with_a_verdict(passed: tuple[bool, ...], refused: tuple[str, ...], line: str) -> None:
    checks = tuple(Check(name=f"c{at}", passed=ok, exit_code=int(not ok)) for at, ok in enumerate(passed))
    shown = told(
        e.IterationStarted(1, 5, "g"),
        e.IterationFinished(1, Iteration(number=1, turn=Turn(text="x"), checks=checks)),
        *(e.ClaimRejected("DONE", gate, "2 of 3 tasks are not done.") for gate in refused),
        e.IterationStarted(2, 5, "g"),
    )
    assert line in shown
    assert ("┃   tasks: 2 of 3 tasks are not done." in shown) == ("tasks" in refused)


def test_green_checks_that_count_as_a_claim_are_not_the_agents_claim() -> None:
    record = Iteration(number=1, turn=Turn(text="x"), checks=(Check(name="a", passed=True),))
    shown = told(
        e.IterationStarted(1, 5, "g"),
        e.IterationFinished(1, record),
        e.ClaimRejected("", "tasks", "1 of 2 tasks are not done."),
        e.IterationStarted(2, 5, "g"),
    )
    assert "┃ ⊘ not done: the check passed, but not every task is done" in shown


def test_the_last_verdict_is_printed_when_the_run_ends() -> None:
    record = Iteration(
        number=1, turn=Turn(text="DONE"), checks=(Check(name="a", passed=True), Check(name="b", passed=True))
    )
    over = e.RunFinished(
        outcome=Outcome.DONE, reason="the agent said DONE", iterations=1, cost_usd=None, duration_s=1.0, exit_code=0
    )
    assert told(e.IterationFinished(1, record), over) == ["┃ ✓ done: both checks passed"]
    assert told(
        e.RunStarted(goal="g", preset="goal", agent="claude", workspace="/ws", max_iterations=1, claims=("turn",)),
        e.IterationFinished(1, Iteration(number=1, turn=Turn(text="x"))),
        over,
    )[-1].startswith("  done when")


def test_a_claim_that_waits_for_an_answer_is_not_called_missing() -> None:
    shown = told(
        e.IterationStarted(1, 5, "g"),
        e.IterationFinished(1, Iteration(number=1, turn=Turn(text="DONE"), checks=(Check(name="a", passed=True),))),
        e.Paused("waiting for an answer: Which?", asks=True),
    )
    assert "┃ · not done yet: the check passed, but the agent waits for an answer" in shown


def test_a_claim_that_waits_for_children_is_not_called_missing() -> None:
    shown = told(
        e.IterationStarted(1, 5, "g"),
        e.IterationFinished(1, Iteration(number=1, turn=Turn(text="x"))),
        e.Waiting(300.0, "children are running: a", children=("a",)),
    )
    assert shown[-3:] == [
        "┃ ◔ not done yet: the agent claimed it, and its children are still running",
        "",
        "◔ waiting 5m: children are running: a",
    ]


def test_check_output_shows_its_end() -> None:
    output = "\n".join(f"line {n}" for n in range(100))
    shown = told(e.CheckFinished(name="make", passed=False, exit_code=2, duration_s=1.0, output=output))
    assert shown[1] == "┃   line 92"
    assert shown[-1] == "┃   line 99"


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
        (e.Paused("a person asked for it"), "‖ paused: a person asked for it; resume it with `ralph resume`"),
        (e.Paused("waiting for an answer: Which?", asks=True), "‖ paused: waiting for an answer: Which?"),
    ],
)
def test_a_pause_says_how_to_resume(event: e.Paused, line: str) -> None:
    assert told(event)[-1] == line


@pytest.mark.parametrize(
    ("claims", "line"),
    [
        (("turn",), "one turn is over"),
        (("word:STOP", "checks"), "all checks pass"),
        (("word:STOP",), "the agent says STOP"),
        (("response:DONE",), "the agent says <response>DONE</response>"),
        (("tag:COMPLETE", "green"), "the agent says COMPLETE or has nothing to add"),
        (("file:DONE",), "the file DONE exists"),
    ],
)
def test_the_header_explains_claims_that_are_not_text(claims: tuple[str, ...], line: str) -> None:
    assert f"  done when  {line}" in told(
        e.RunStarted(goal="fix it", preset="goal", agent="claude", workspace="/repo", max_iterations=1, claims=claims)
    )


def test_check_output_has_relative_paths_and_no_lines_without_words() -> None:
    lines = EventLines(Style(GLYPHS))
    lines(e.RunStarted(goal="x", preset="checks", agent="claude", workspace="/work/shop", max_iterations=3))
    output = 'F\n======\nFile "/work/shop/cart.py", line 4\n------\n\nFAILED\n'
    shown = "\n".join(lines(e.CheckFinished(name="make test", passed=False, exit_code=1, output=output)))
    assert "=====" not in shown
    assert "-----" not in shown
    assert 'File "cart.py", line 4' in shown


BOLD, CYAN = "\x1b[1m", "\x1b[36m"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Use `empty()` here, it is **safe**.", "  Use [empty()] here, it is <safe>."),
        ("# What I did", "  <What I did>"),
        ("2 ** 3 ** 4, a `lone mark, and ` b ` too", "  2 ** 3 ** 4, a `lone mark, and ` b ` too"),
        ("```\n# `x` **y**\n```", "  ```\n  # `x` **y**\n  ```"),
    ],
)
def test_emphasis_of_agents_is_painted_if_there_are_colours(said: str, shown: str) -> None:
    painted = "\n".join(EventLines(Style(color=True))(e.AgentText(said)))
    assert painted == shown.translate(
        {ord(mark): code for mark, code in zip("<[>]", (BOLD, CYAN, RESET, RESET), strict=True)}
    )
    assert "\n".join(told(e.AgentText(said))) == "\n".join(f"  {line}" for line in said.split("\n"))


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def flooded(*later: e.Event, more: int = 500, seconds: float = 0.0) -> list[str]:
    """Return the screen after more lines than a person can read, and an event `seconds` later."""
    out, clock = io.StringIO(), Clock()
    screen = make_screen(out, env={}, clock=clock)
    screen(e.AgentStarted("agent"))
    screen(*(e.AgentText(f"line {number}") for number in range(MAX_RATE + more)))
    clock.now += seconds
    for event in later:
        screen(event)
    screen.close()
    return out.getvalue().splitlines()


def test_talk_is_limited_to_what_a_person_could_read() -> None:
    lines = [line for line in flooded() if line.startswith("  line")]
    assert lines == [f"  line {number}" for number in range(MAX_RATE)]


def test_events_of_ralph_are_never_limited_and_say_what_was_left_out() -> None:
    *_, left_out, empty, check = flooded(e.CheckStarted("make test"))
    assert "500 more things came too fast to be shown: see the log" in left_out
    assert (empty, "make test" in check) == ("", True)


def test_a_second_later_talk_is_shown_again() -> None:
    *_, left_out, line = flooded(e.AgentText("still here"), seconds=1.0)
    assert ("500 more things" in left_out, line) == (True, "  still here")


def test_less_talk_than_the_limit_is_shown_whole() -> None:
    assert not [line for line in flooded(more=0) if "more things" in line]


def test_a_long_line_counts_as_the_rows_that_it_takes() -> None:
    out = io.StringIO()
    screen = make_screen(out, env={}, clock=Clock())
    screen(*(e.AgentText("x" * 999) for _ in range(MAX_RATE)))
    assert MAX_RATE // 11 < out.getvalue().count("xx\n") <= MAX_RATE // 10 + 1


def test_the_agent_is_not_read_while_talk_is_over_the_limit() -> None:
    clock = Clock()
    screen = make_screen(io.StringIO(), env={}, clock=clock)
    assert screen.reads()
    screen(*(e.AgentText("line") for _ in range(MAX_RATE)))
    assert not screen.reads()
    clock.now += 1
    assert screen.reads()
    assert not make_screen(io.StringIO(), quiet=True, env={}).reads()
