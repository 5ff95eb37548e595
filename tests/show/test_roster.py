"""The list of runs: a row of facts each, and below it what it does, wants or came to; it fits its terminal."""

from msgspec.structs import replace

from ralph.show.outlet import TEXT, Style
from ralph.show.roster import Sight, roster
from ralph.show.words import width

RUNNING = Sight(
    run="20261115-083312-k3fa",
    state="running",
    alive=True,
    iteration=3,
    max_iterations=10,
    checks=3,
    checks_passed=2,
    cost_usd=0.42,
    tokens=1000,
    age_s=720.0,
    doing="Bash(pytest -q)",
    since=96.0,
    questions=(),
    notes=0,
    pausing=False,
    waiting_until=0.0,
    outcome="",
    reason="",
    workspace="/home/user/src/shop",
    goal="goal",
    agent="claude",
    preset="checks",
    branch="",
    pid=7,
)


def lines(*sights: Sight, columns: int = 0) -> list[str]:
    return roster(sights, Style(TEXT), columns, 100.0, "/home/user")


def test_a_run_at_work() -> None:
    assert lines(RUNNING) == [
        "RUN                   STATE    ITERATION  CHECKS  COST   AGE  WORKSPACE",
        "20261115-083312-k3fa  running  3/10       2/3     $0.42  12m  ~/src/shop",
        "                      Bash(pytest -q) 4s",
    ]


def test_what_a_run_wants_is_said_below_it() -> None:
    wants = replace(RUNNING, questions=("Port 80\nor 8080?",), notes=2, pausing=True)
    assert [line.strip() for line in lines(wants)[2:]] == [
        "Bash(pytest -q) 4s",
        "asks: Port 80 or 8080?",
        "pauses after this turn",
        "2 notes for the next prompt",
    ]


def test_waits_pauses_questions_and_ends() -> None:
    table = (
        (replace(RUNNING, state="waiting", reason="usage limit", waiting_until=99.0), "usage limit"),
        (replace(RUNNING, state="paused", since=40.0, pausing=True), "for 1m; go on with `ralph resume`"),
        (replace(RUNNING, state="asking", questions=("Which?",), doing="paused: x"), "asks: Which?"),
        (replace(RUNNING, state="killed", alive=False), "go on with `ralph resume`"),
        (replace(RUNNING, state="done", alive=False, reason="every check passes"), "every check passes"),
    )
    for sight, said in table:
        assert [line.strip() for line in lines(sight)[2:]] == [said]


def test_what_is_not_known_is_a_dash() -> None:
    unknown = replace(RUNNING, cost_usd=None, checks=0, max_iterations=None)
    assert lines(unknown)[1].split()[2:5] == ["3", "-", "-"]


def test_nothing_is_wider_than_the_terminal() -> None:
    wide = replace(RUNNING, workspace="/home/user/" + "漢字" * 80, doing="x" * 500)
    for columns in (20, 80, 120):
        assert all(width(line) <= columns for line in lines(wide, columns=columns))


def test_control_characters_of_others_do_not_reach_the_terminal() -> None:
    hostile = replace(RUNNING, doing="\x1b[2Jgone\x07", workspace="/tmp/\x1b]0;x\x07", questions=("\u202ex",))
    assert not {"\x1b", "\x07", "\u202e"} & set("".join(lines(hostile)))
