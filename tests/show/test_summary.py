"""The table at the end of a run, and the list of all runs: rows of facts that fit their terminal."""

from msgspec.structs import replace

from ralph.core.model import Usage
from ralph.history.overview import RunNow
from ralph.history.run_history import CheckResult, IterationResult, PastIteration, RunHistory
from ralph.show.outlet import GLYPHS, TEXT, Style
from ralph.show.summary import run_list, table
from ralph.show.words import width


def past(
    number: int, result: IterationResult, seconds: float, tools: int | None, cost: float | None = None, **checks: bool
) -> PastIteration:
    return PastIteration(
        number=number,
        began=0.0,
        result=result,
        seconds=seconds,
        tool_calls=tools,
        usage=Usage(cost_usd=cost),
        failure="exit 1" if result == "failed" else "",
        checks=[CheckResult(name=name, passed=passed, seconds=0.0) for name, passed in checks.items()],
        is_whole=True,
        is_accepted=result == "done",
    )


def shown(*iterations: PastIteration, room: int = 80, cost: float | None = None) -> list[str]:
    history = RunHistory(run="r", iterations=list(iterations), seconds=72.0, cost_usd=cost)
    return table(history, Style(GLYPHS), room)


def test_one_row_for_each_iteration_and_a_total() -> None:
    rows = (
        past(1, "checks failed", 62.0, 12, 0.12, test=False, lint=True),
        past(2, "failed", 2.5, 0),
        past(3, "done", 7.5, 8, 0.3, test=True, lint=True),
    )
    assert shown(*rows, cost=0.42) == [
        "  #  checks      tools   cost   time  what happened",
        "  1  ✗ 1/2 test     12  $0.12   1m2s  checks failed",
        "  2                  0          2.5s  failed: exit 1",
        "  3  ✓ 2/2           8  $0.30   7.5s  done",
        "                    20  $0.42  1m12s  total",
    ]


def test_empty_columns_are_left_out() -> None:
    assert shown(past(1, "done", 3.0, None)) == ["  #  time  what happened", "  1    3s  done"]


def test_commits_and_reviews_are_shown_with_the_result() -> None:
    one = past(1, "done", 3.0, None)
    one.scm = [("commit", True, "words"), ("push", False, "no remote")]
    assert shown(one)[1] == "  1    3s  done, committed"


def test_a_run_without_iterations_has_no_table() -> None:
    assert shown() == []
    assert shown(PastIteration(number=1, began=0.0)) == []


def test_the_table_fits_a_narrow_terminal() -> None:
    rows = [past(n, "failed", 9.0, 3, 0.1, **{"x" * 60: False, "日本" * 20: False}) for n in (1, 2)]
    for one in rows:
        one.failure = "y" * 90
    for room in (60, 80, 120):
        assert max(map(width, shown(*rows, room=room, cost=0.42))) <= room


def test_a_long_check_is_cut_and_not_the_verdict() -> None:
    rows = [past(n, "checks failed", 9.0, 3, 0.1, **{"test -f " + "x" * 60: False}) for n in (1, 2)]
    for one in rows:
        one.scm = [("commit", True, "words")]
    assert shown(*rows, room=80, cost=0.42)[1].endswith("checks failed, committed")


def test_a_narrow_terminal_shows_what_happened() -> None:
    rows = [past(n, "checks failed", 9.0, 3, 0.012, **{"python3 -m unittest -q": False}) for n in (1, 2)]
    for one in rows:
        one.scm = [("commit", True, "words")]
    assert shown(*rows, room=60, cost=0.42)[1].endswith("checks failed, committed")


def test_a_very_long_run_shows_its_first_and_last_iterations() -> None:
    lines = shown(*(past(n, "no claim", 1.0, 1) for n in range(1, 201)))
    assert len(lines) == 63
    assert lines[31] == "  … 140 more iterations"
    assert lines[-2].split()[0] == "200"
    assert lines[-1].split() == ["200", "1m12s", "total"]


RUNNING = RunNow(
    run="20261115-083312-k3fa",
    state="running",
    alive=True,
    held=False,
    needs_you=False,
    iteration=3,
    max_iterations=10,
    checks=3,
    checks_passed=2,
    cost_usd=0.42,
    tokens=1000,
    age_s=720.0,
    lasted_s=720.0,
    doing="Bash(pytest -q)",
    since=96.0,
    questions=(),
    notes=0,
    pausing=False,
    until=0.0,
    outcome="",
    reason="",
    workspace="/home/user/src/shop",
    goal="goal",
    agent="claude",
    preset="checks",
    branch="",
    pid=7,
)


def lines(*runs: RunNow, columns: int = 0) -> list[str]:
    return run_list(runs, Style(TEXT), columns, 100.0, "/home/user")


def test_a_running_run_shows_its_activity() -> None:
    assert lines(RUNNING) == [
        "RUN                   STATE    ITERATION  CHECKS  COST   AGE  WORKSPACE",
        "20261115-083312-k3fa  running  3/10       2/3     $0.42  12m  ~/src/shop",
        "                      goal",
        "                      Bash(pytest -q) 4s",
    ]


def test_questions_notes_and_pauses_are_below_the_run() -> None:
    wants = replace(RUNNING, questions=("Port 80\nor 8080?",), notes=2, pausing=True)
    assert [line.strip() for line in lines(wants)[2:]] == [
        "goal",
        "Bash(pytest -q) 4s",
        "asks: Port 80 or 8080?",
        "pauses after this turn",
        "2 notes for the next prompt",
    ]


def test_the_line_below_a_run_explains_its_state() -> None:
    table = (
        (replace(RUNNING, state="waiting", reason="usage limit", until=99.0), "usage limit"),
        (replace(RUNNING, state="paused", since=40.0, pausing=True), "for 1m; resume it with `ralph resume`"),
        (replace(RUNNING, state="asking", held=True, questions=("Which?",), doing="paused: x"), "asks: Which?"),
        (replace(RUNNING, state="killed", alive=False), "resume it with `ralph resume`"),
        (replace(RUNNING, state="done", alive=False, reason="every check passes"), "every check passes"),
    )
    for run, said in table:
        assert [line.strip() for line in lines(run)[2:]] == ["goal", said]


def test_unverified_work_is_not_shown_as_done() -> None:
    done = replace(RUNNING, state="done", alive=False, outcome="done", verified=False)
    assert lines(done)[1].split()[1] == "unverified"


def test_a_stopped_run_says_how_to_resume_it() -> None:
    stopped = replace(RUNNING, state="interrupted", alive=False, outcome="interrupted", interrupted_by="SIGINT")
    assert lines(stopped)[-1].strip() == "stopped by you; resume it with `ralph resume`"


def test_unknown_facts_are_a_dash() -> None:
    unknown = replace(RUNNING, cost_usd=None, checks=0, max_iterations=None)
    assert lines(unknown)[1].split()[2:5] == ["3", "-", "-"]


def test_no_line_is_wider_than_the_terminal() -> None:
    wide = replace(RUNNING, workspace="/home/user/" + "漢字" * 80, doing="x" * 500)
    for columns in (20, 80, 120):
        assert all(width(line) <= columns for line in lines(wide, columns=columns))


def test_control_characters_do_not_reach_the_terminal() -> None:
    hostile = replace(RUNNING, doing="\x1b[2Jgone\x07", workspace="/tmp/\x1b]0;x\x07", questions=("\u202ex",))
    assert not {"\x1b", "\x07", "\u202e"} & set("".join(lines(hostile)))
