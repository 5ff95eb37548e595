"""The attempts of a run that optimises a number, as a drawing and as a table."""

from ralph.core import events as e
from ralph.core.measuring import Comparison, Metric, Start
from ralph.core.model import Check, Iteration, Turn, Usage
from ralph.history.fold import Fold
from ralph.show.outlet import GLYPHS, Style
from ralph.show.report import for_review, html
from ralph.show.report_tables import iterations, staircase, steps_of
from ralph.show.summary import render_history
from ralph.show.summary import table as summary_table


def tuned() -> Fold:
    metric, fold = Metric(min_gain=0.01), Fold("run")
    fold.add(e.RunStarted(goal="g", preset="tune", agent="a", workspace="/w", max_iterations=9), 1.0)
    fold.add(e.StartMeasured(Start(metric, (100.0, 104.0, 102.0))), 2.0)
    kept = Comparison(before=200, after=150, gain=0.25, kept=True)
    results = (
        Iteration(number=1, turn=Turn(text="IDEA: worse"), measured=Comparison(before=100, after=130, gain=-0.25)),
        Iteration(number=2, turn=Turn(text="IDEA: <b>x"), measured=kept),
        Iteration(number=3, turn=Turn(text=""), checks=(Check(name="test", passed=False, exit_code=1),)),
    )
    for one in results:
        fold.add(e.IterationFinished(one.number, one), 3.0 + one.number)
    return fold


def test_the_staircase_follows_measured_gains_not_single_values() -> None:
    steps = steps_of(tuned().as_of())

    assert [(step.before, step.value, step.after) for step in steps] == [
        (102.0, 127.5, 102.0),
        (102.0, 76.5, 76.5),
        (76.5, None, 76.5),
    ]


def test_kept_attempts_are_dots_dropped_ones_crosses_and_the_noise_is_a_band() -> None:
    history = tuned().as_of()
    drawn, table = staircase(history), iterations(history, "")

    assert drawn is not None
    assert table is not None
    assert (drawn.count("<circle"), drawn.count('class="cross"'), drawn.count('class="band"')) == (1, 2, 1)
    assert "dropped: test: exit code 1" in table
    assert "&lt;b&gt;x" in table


def test_the_cost_of_an_attempt_fits_into_80_columns() -> None:
    history = tuned().as_of()
    for one in history.iterations:
        one.gain, one.idea, one.usage = "dropped: " + "x" * 60, "y" * 60, Usage(cost_usd=0.012)
    assert [line.split()[-2] for line in summary_table(history, Style(GLYPHS), 80)[1:4]] == ["$0.0120"] * 3


def test_the_green_checks_of_the_start_are_not_mentioned() -> None:
    """Green checks are a condition of the start here; in other runs they are worth a warning."""
    fold = tuned()
    fold.add(e.Baseline((Check(name="test", passed=True),)), 2.0)
    assert not [line for line in render_history(fold.history, Style(GLYPHS)) if line.split() == ["checks"]]
    said = for_review(fold.history)
    assert "\n.\n" not in said
    assert "| Idea |" in said
    assert '<p class="facts">.' not in html(fold.history, {})
