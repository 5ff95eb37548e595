import pytest

from ralph.core.events import TodoItem
from ralph.core.model import PersonNote, Question, Usage
from ralph.core.state import BacklogSummary, RunSummary
from ralph.history.fold import Fold
from ralph.history.overview import Now, run_now
from ralph.history.run_history import CheckResult, PastIteration
from ralph.show.outlet import GLYPHS, Marks, Style
from ralph.show.words import width
from ralph.store.mailbox import Mail
from ralph.store.register import Listed
from ralph.tui import draw
from ralph.tui.draw import PLAIN, tui_style
from ralph.tui.tui_state import rank

NOW = 1_000_000.0
NOTES = PersonNote("1", "use tabs"), PersonNote("2", "be quick")
ASCII = Style(PLAIN)


def past(number: int, passed: int, checks: int, failure: str = "") -> PastIteration:
    return PastIteration(
        number=number,
        began=0.0,
        usage=Usage(cost_usd=0.1),
        failure=failure,
        checks=[result(str(at), at < passed, 1) for at in range(checks)],
        is_whole=True,
    )


def result(name: str, passed: bool, seconds: float) -> CheckResult:
    return CheckResult(name=name, passed=passed, seconds=seconds)


def run(alive: bool = True, mail: Mail | None = None, **facts: object) -> Now:
    known = {
        "goal": "Fix it",
        "workspace": "/home/me/shop",
        "began": NOW - 65,
        "max_iterations": 10,
        "agent": "claude",
    } | facts
    listed = Listed("20260101-120000-k3fa", "/x", RunSummary(run="20260101-120000-k3fa", **known), alive)  # type: ignore[arg-type]
    return run_now(listed, NOW, mail or Mail())


@pytest.mark.parametrize(
    ("past_ones", "columns", "bars"),
    [
        ([past(1, 0, 2)], 20, "·"),
        ([past(1, 0, 2), past(2, 1, 2), past(3, 2, 2)], 20, "·▄█"),
        ([past(n, n < 20, 1) for n in range(1, 40)], 22, "██·" + "·" * 19),
        ([past(1, 0, 0), past(2, 0, 0, "it failed")], 20, "█·"),
    ],
    ids=["all red", "growing", "the latest", "without checks"],
)
def test_the_graph_has_a_bar_of_passed_checks_per_iteration(
    past_ones: list[PastIteration], columns: int, bars: str, plain: Style
) -> None:
    assert draw.graph(past_ones, columns, plain) == bars


def test_the_graph_has_an_ascii_form() -> None:
    assert draw.graph([past(1, 0, 2), past(2, 1, 2), past(3, 2, 2)], 20, ASCII) == ".-#"


def test_checks_show_their_latest_result_and_time(plain: Style) -> None:
    lint, tests = result("lint", True, 0.3), result("tests", False, 62)
    known = {"lint": lint, "tests": tests, "types": result("types", True, 1), "e2e": None}
    assert draw.checks(known, {"types"}, 16, 5, plain) == [
        "✓ lint      0.3s",
        "✗ tests     1m2s",
        "▸ types        …",
        "· e2e           ",
    ]


def test_failing_checks_come_first_if_space_is_short(plain: Style) -> None:
    known = {name: result(name, name != "c", 1) for name in "abcd"}
    assert draw.checks(known, (), 12, 3, plain) == ["✗ c       1s", "✓ a       1s", "… 2 more"]


def test_a_long_todo_list_is_shown_around_the_active_item(plain: Style) -> None:
    items = [TodoItem(f"item {at}", "done") for at in range(1, 6)] + [TodoItem("now", "active"), TodoItem("then")]
    assert draw.todo(items, 20, 10, plain)[-2:] == ["▸ now", "· then"]
    assert draw.todo(items, 20, 3, plain) == ["✓ item 5", "▸ now", "· then"]
    assert draw.todo([TodoItem("a long name", "active")], 8, 3, plain) == ["▸ a lon…"]


def test_the_checks_pane_has_the_graph_above_the_results(plain: Style) -> None:
    fold = Fold("r")
    fold.history.iterations = [past(1, 0, 1), past(2, 1, 1)]
    assert draw.checks_pane(fold, 20, 4, plain) == ["·█", "✓ 0               1s"]


def test_a_run_has_one_or_two_lines_in_the_list(plain: Style) -> None:
    assert draw.run_rows(run(finished=2), 24, plain, is_tall=False, here="/home/me/shop") == [
        "● Fix it            3/10"
    ]
    asking = run(mail=Mail(questions=(Question("q", "Which?"),)), finished=2)
    assert draw.run_rows(asking, 24, plain, is_tall=False) == ["? shop: Fix it      3/10"]
    ended = run(False, finished=4, outcome="exhausted", max_iterations=4)
    assert draw.run_rows(ended, 24, plain, is_tall=True) == ["✗ k3fa exhausted     4/4", "  shop: Fix it"]
    unknown = run(False, max_iterations=1, goal="")
    assert draw.run_rows(unknown, 24, plain, is_tall=False) == ["✗ k3fa killed          0"]


def test_the_head_shows_state_goal_and_activity(plain: Style) -> None:
    at_work = run(finished=2, cost_usd=0.42, tokens=81_000, doing="Bash(make)", since=NOW - 12)
    assert draw.head(at_work, NOW, 70, plain) == [
        "● k3fa running · iteration 3/10 · 1m5s · $0.42 · 81K tokens · claude",
        "  Fix it",
        "  ▸ Bash(make) 12s",
    ]
    assert draw.head(at_work, NOW, 40, plain)[0] == "● k3fa running · 3/10 · 1m5s · $0.42 · …"


@pytest.mark.parametrize("columns", [52, 90])
def test_the_head_shows_yolo_and_sandbox(columns: int, plain: Style) -> None:
    free = run(rights=("--yolo", "--sandbox"), agent="/usr/bin/claude -p", finished=2, cost_usd=0.42, tokens=81_000)
    first = draw.head(free, NOW, columns, plain)[0]
    assert first.startswith("● k3fa running --yolo --sandbox · ")
    assert columns < 90 or first.endswith(" · claude -p")


def test_a_backlog_shows_how_many_tasks_are_merged_parked_and_blocked(plain: Style) -> None:
    facts = {
        "run": "20260101-120000-k3fa",
        "workspace": "/home/me/shop",
        "goal": "work off TASKS.md",
        "branch": "ralph/k3fa/merged",
        "began": NOW - 100,
        "tasks": 12,
        "merged": 10,
        "outcome": "parked",
        "doing": "10 landed, 1 parked, 1 blocked",
        "seconds": 65.0,
    }
    ended = run_now(Listed("20260101-120000-k3fa", "/x", BacklogSummary(**facts), False), NOW, Mail())  # type: ignore[arg-type]
    assert draw.run_rows(ended, 24, plain, is_tall=True, here="/home/me/shop")[0] == "✗ k3fa parked      10/12"
    assert draw.head(ended, NOW, 70, plain) == [
        "✗ k3fa parked · 10/12 merged · 1m5s",
        "  work off TASKS.md",
        "  → 10 landed, 1 parked, 1 blocked; a accepts it",
    ]


def test_a_backlog_is_listed_above_its_tasks() -> None:
    def listed(name: str, alive: bool = False, **facts: str) -> Listed:
        summary = BacklogSummary(run=name) if name.endswith("-work") else RunSummary(run=name, **facts)
        return Listed(name, "/x", summary, alive)

    runs = [
        listed("1-work"),
        listed("2-other"),
        listed("3-item", work="1-work"),
        listed("4-item", work="1-work", alive=True),
        listed("5-lost", work="0-gone"),
        listed("6-work", alive=True),
        listed("7-item", work="6-work"),
    ]
    known = {one.id: one for one in runs}
    ordered = sorted(runs, key=lambda one: rank(one, known), reverse=True)
    assert [one.id for one in ordered] == ["6-work", "7-item", "4-item", "5-lost", "2-other", "1-work", "3-item"]


@pytest.mark.parametrize(
    ("facts", "mail", "line"),
    [
        ({}, Mail(questions=(Question("q", "Which port?"),)), "  ? t answers: Which port?"),
        ({"paused": "you asked for it"}, Mail(is_paused=True), "  ‖ you asked for it; r resumes it"),
        ({"doing": "thinking"}, Mail(is_paused=True), "  ‖ pauses after this turn; r resumes it"),
        ({"doing": "thinking"}, Mail(NOTES), "  ▸ thinking » 2 notes for the next prompt"),
        ({"doing": "thinking", "given": 1}, Mail(NOTES), "  ▸ thinking » 1 note for the next prompt"),
        ({"doing": "thinking", "given": 2}, Mail(NOTES), "  ▸ thinking"),
        ({"outcome": "stalled", "reason": "nothing changed"}, Mail(), "  → nothing changed"),
        ({"outcome": "interrupted", "interrupted_by": "SIGTERM"}, Mail(), "  → stopped by you"),
        ({"outcome": ""}, Mail(), "  → its process died; r resumes it"),
    ],
    ids=["asks", "paused", "will pause", "told", "told and read", "read", "ended", "stopped", "killed"],
)
def test_the_head_shows_questions_before_pauses_and_activity(
    facts: dict[str, object], mail: Mail, line: str, plain: Style
) -> None:
    alive = "outcome" not in facts
    assert draw.head(run(alive, mail, **facts), NOW, 70, plain)[2] == line


def test_the_top_shows_the_folder_and_what_a_goal_would_start(plain: Style) -> None:
    assert draw.top("/home/me/shop", "/home/me", "single shot", 50, plain) == [
        " ralph · ~/shop                 next: single shot "
    ]
    (line,) = draw.top("/home/me/" + "long/" * 20, "/home/m", "single shot", 50, plain)
    assert width(line) == 50
    assert "…" in line


@pytest.mark.parametrize("columns", [20, 24, 52, 80])
@pytest.mark.parametrize("text", ["日本語のテキスト" * 9, "x" * 300, "🎉 " * 50], ids=["wide", "long", "emoji"])
def test_no_line_is_wider_than_its_pane(columns: int, text: str, plain: Style) -> None:
    mail = Mail(questions=(Question("q", text),))
    known = run(True, mail, goal=text, doing=text, workspace=f"/w/{text}", finished=123, cost_usd=1234.5, tokens=10**9)
    lines = [
        *draw.run_rows(known, columns, plain, is_tall=True),
        *draw.head(known, NOW, columns, plain),
        *draw.checks({text: result(text, False, 3600.0)}, (), columns, 5, plain),
        *draw.checks({text: None}, {text}, columns, 5, plain),
        *draw.todo([TodoItem(text, "active"), TodoItem(text)], columns, 5, plain),
        *draw.paragraphs(text, columns),
    ]
    assert max(map(width, lines)) <= columns


@pytest.mark.parametrize(
    ("env", "is_plain"),
    [({"TERM": "xterm-256color"}, False), ({"TERM": "linux"}, True), ({"TERM": "tmux"}, False)],
)
def test_a_linux_console_gets_ascii_marks(env: dict[str, str], is_plain: bool) -> None:
    assert (tui_style(None, env).marks is PLAIN) is is_plain


@pytest.mark.parametrize("marks", [GLYPHS, PLAIN], ids=["unicode", "ascii"])
def test_marks_take_one_column_each(marks: Marks) -> None:
    names = ("tool", "passed", "failed", "refused", "waiting", "paused", "question", "person", "check")
    todo = ("todo_done", "todo_active", "todo_pending")
    assert {width(getattr(marks, name)) for name in (*names, *todo)} == {1}
