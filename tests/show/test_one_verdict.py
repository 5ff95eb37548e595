"""Every view describes the result of an iteration and of a run in the same words."""

from io import StringIO

import pytest
from msgspec.structs import replace

from ralph.core import events as e
from ralph.core.model import Check, Failure, Iteration, Outcome, Turn
from ralph.history.fold import Fold
from ralph.show.event_lines import EventLines
from ralph.show.outlet import TEXT, Style
from ralph.show.report import for_review, html
from ralph.show.screen import make_screen
from ralph.show.summary import render_history, table
from ralph.show.words import outcome_sentence
from ralph.tui.tui_state import stream_lines

STARTED = e.RunStarted(
    goal="goal",
    preset="checks",
    agent="claude",
    workspace="/ws",
    max_iterations=9,
    checks=("a", "b", "c"),
    claims=("tag:X",),
    gates=("checks",),
)
FAILED = Turn(text="x", exit_code=1, failure=Failure("ordinary", "exit code 1"))
RED = tuple(Check(name=name, passed=False, exit_code=1) for name in "abc")
REFUSALS = [e.ClaimRejected("X", "checks", f"{name} failed") for name in "abc"]


def finished(outcome: str, iterations: int = 1) -> e.RunFinished:
    return e.RunFinished(
        outcome=Outcome(outcome),
        reason="why",
        iterations=iterations,
        cost_usd=None,
        duration_s=1.0,
        exit_code=0 if outcome == "done" else 1,
    )


def iteration(number: int, turn: Turn, *more: e.Event, **facts: object) -> list[e.Event]:
    record = Iteration(number=number, turn=turn, **facts)  # type: ignore[arg-type]
    return [e.IterationStarted(number, 9, "goal"), e.IterationFinished(number, record), *more]


RUNS: dict[str, tuple[list[e.Event], str]] = {
    "a DONE file beside a failed turn": ([*iteration(1, FAILED), finished("done")], "done"),
    "no time was left for the checks": (
        [*iteration(1, Turn(text="x"), checked=False), finished("timeout")],
        "not checked",
    ),
    "checks object to a claim": (
        [*iteration(1, Turn(text="x"), *REFUSALS, checks=RED), finished("exhausted")],
        "claim refused: checks",
    ),
}


@pytest.mark.parametrize("kind", RUNS)
def test_summary_show_and_reports_agree_about_an_iteration(kind: str) -> None:
    events, words = RUNS[kind]
    fold = Fold("r")
    for event in (STARTED, *events):
        fold.add(event, 1000.0)
    assert words in table(fold.history, Style(TEXT))[1]
    assert f"iteration 1  {words}" in "\n".join(render_history(fold.history, Style(TEXT)))
    assert f">{words}</span></summary>" in html(fold.history, {})
    assert f"| {words} |" in for_review(fold.history)


@pytest.mark.parametrize("kind", RUNS)
def test_screen_show_report_and_tui_end_with_the_same_sentence(kind: str) -> None:
    events, _ = RUNS[kind]
    stream, fold, lines = StringIO(), Fold("r"), EventLines(Style(TEXT))
    screen = make_screen(stream, color=False)
    for event in (STARTED, *events):
        screen(event)
        fold.add(event, 1000.0)
        shown = stream_lines(lines, event, 1000.0)
    sentence = outcome_sentence(fold.history)
    assert stream.getvalue().splitlines()[-1] == f"ralph: {sentence}"
    assert list(render_history(fold.history, Style(TEXT)))[-1] == f"ralph: {sentence}"
    assert f"<h1>{sentence}</h1>" in html(fold.history, {})
    assert shown[-1] == sentence


def test_a_claim_counts_once_even_if_several_checks_object() -> None:
    fold = Fold("r")
    claims = [event for number in (1, 2, 3) for event in iteration(number, Turn(text="x"), *REFUSALS, checks=RED)]
    for event in (STARTED, *claims, finished("exhausted", 3)):
        fold.add(event, 1000.0)
    assert "<b>3</b><span>claims refused</span>" in html(fold.history, {})


@pytest.mark.parametrize("rights", [("--yolo",), ("--sandbox",), ("--yolo", "--sandbox")])
def test_the_header_show_and_reports_say_that_a_run_has_all_rights_or_a_sandbox(rights: tuple[str, ...]) -> None:
    started, fold = replace(STARTED, rights=rights), Fold("r")
    for event in (started, *iteration(1, Turn(text="x")), finished("exhausted")):
        fold.add(event, 1000.0)
    said = " ".join(rights)
    assert said in EventLines(Style(TEXT))(started)[0]
    assert " · ".join(rights) in next(render_history(fold.history, Style(TEXT)))
    assert f"claude {said}" in html(fold.history, {})
    assert f"claude {said}" in for_review(fold.history)
