"""A run that optimises a number, as a drawing and a table: the staircase of kept attempts, and what was dropped.

It draws the gains instead of the measured values, which drift when the machine gets busier.
"""

from collections.abc import Sequence

from msgspec import Struct

from ralph.core.gains import describe_end, describe_start, format_value
from ralph.core.measuring import Metric, run_to_run_difference
from ralph.history.run_history import PastIteration, RunHistory
from ralph.show.columns import Column, attempt_columns
from ralph.show.plots import Html, draw_label, draw_line, draw_svg, element, legend
from ralph.show.report_tables import mark, number_column, table
from ralph.show.words import sentence_case

WIDTH, HEIGHT = 960.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 86.0, 20.0, 16.0, 34.0
CROSS = 4.5  # half the width of a dropped attempt's mark
MARGIN = 0.12  # of the range of values, above and below
MAX_LABELS = 24


class Stair(Struct, frozen=True):
    """One attempt: the best value before it, and its own one; None if it has no number."""

    attempt: PastIteration
    before: float
    value: float | None

    @property
    def after(self) -> float:
        """The best value after it."""
        return self.value if self.attempt.is_kept and self.value is not None else self.before


def steps_of(history: RunHistory) -> list[Stair]:
    """Return the attempts with their values, computed by adding up the measured gains."""
    if history.first_numbers is None:
        return []
    metric, best, steps = history.first_numbers.metric, history.first_numbers.value, []
    for one in history.whole:
        has_number = one.measured is not None and one.measured.after is not None
        step = Stair(one, best, apply_gain(best, one.measured.gain, metric) if has_number and one.measured else None)
        steps.append(step)
        best = step.after
    return steps


def apply_gain(value: float, gain: float, metric: Metric) -> float:
    return value + (gain if metric.maximize else -gain) * abs(value)


def staircase(history: RunHistory) -> Html | None:
    """Draw the best value over the attempts, with dropped attempts as crosses and the noise as a band."""
    start, steps = history.first_numbers, steps_of(history)
    if start is None or not steps:
        return None
    scale, noise = Scale(history, steps), run_to_run_difference(start.values)
    drawn = [*scale.axis(start.metric), scale.band(noise), scale.path()]
    drawn += [scale.mark(at, step) for at, step in enumerate(steps, 1)]
    best = steps[-1].after
    title = f"from {format_value(start.value, start.metric)} to {format_value(best, start.metric)}, attempt by attempt"
    tones = [("good", "kept"), ("bad", "dropped"), *([("noise", "noise")] if noise else [])]
    said = [describe_start(start.metric, start.values, start.noise)]
    said += [describe_end(history.end_numbers, start.metric)] if history.end_numbers else []
    facts = element("p.facts", f"{sentence_case('; '.join(said))}.")
    plot = element("div.scroll", draw_svg(WIDTH, HEIGHT, title, drawn), tabindex="0", role="region", aria_label=title)
    return element("div.card", legend(tones), plot, facts)


class Scale:
    """Where attempts and values are in the drawing."""

    def __init__(self, history: RunHistory, steps: Sequence[Stair]) -> None:
        self._steps = steps
        values = [value for step in steps for value in (step.before, step.value, step.after) if value is not None]
        low, high = min(values), max(values)
        room = (high - low) * MARGIN or abs(high) * MARGIN or 1.0
        self._low, self._high = low - room if low < 0 else max(0.0, low - room), high + room

    def x(self, attempt: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * attempt / len(self._steps)

    def y(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return HEIGHT - BOTTOM - min(max(share, 0.0), 1.0) * (HEIGHT - TOP - BOTTOM)

    def axis(self, metric: Metric) -> list[Html]:
        """Draw the lines of a few values, and the numbers of the attempts."""
        drawn: list[Html] = []
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            value = self._low + share * (self._high - self._low)
            drawn.append(draw_line(LEFT, self.y(value), WIDTH - RIGHT, self.y(value), "grid-line"))
            drawn.append(draw_label(LEFT - 6, self.y(value) + 4, format_value(float(f"{value:.3g}"), metric), "end"))
        every = -(-len(self._steps) // MAX_LABELS)
        numbers = range(1, len(self._steps) + 1, every)
        drawn += [draw_label(self.x(at - 0.5), HEIGHT - BOTTOM + 16, str(at), "middle") for at in numbers]
        return drawn

    def band(self, noise: float) -> Html:
        """Draw the noise around the best value: how far two runs of the same version may be apart."""
        corners = self._corners()
        upper = [self._point(x, value * (1 + noise)) for x, value in corners]
        lower = [self._point(x, value * (1 - noise)) for x, value in corners]
        return element("path.band", d=f"M{' L'.join([*upper, *reversed(lower)])} Z")

    def path(self) -> Html:
        """Draw the best value, with a step at each kept attempt."""
        points = [self._point(x, value) for x, value in self._corners()]
        return element("path.stairs", d=f"M{' L'.join(points)}")

    def _corners(self) -> list[tuple[float, float]]:
        """Return the attempts and values between which the best value is drawn: each changes in the middle."""
        corners: list[tuple[float, float]] = []
        for at, step in enumerate(self._steps):
            corners += [(at, step.before), (at + 0.5, step.before), (at + 0.5, step.after), (at + 1, step.after)]
        return corners

    def _point(self, attempt: float, value: float) -> str:
        return f"{self.x(attempt):.1f},{self.y(value):.1f}"

    def mark(self, attempt: int, step: Stair) -> Html:
        """Draw a dot for a kept attempt, a cross for a dropped one. An attempt without a number is
        drawn at the bottom."""
        x = self.x(attempt - 0.5)
        y = HEIGHT - BOTTOM if step.value is None else self.y(step.value)
        title = element("title", f"attempt {attempt}: {step.attempt.gain}")
        if step.attempt.is_kept:
            return element("g", title, element("circle.f-good", cx=f"{x:.1f}", cy=f"{y:.1f}", r="4.5"))
        cross = f"M{x - CROSS:.1f},{y - CROSS:.1f} l9,9 m0,-9 l-9,9"
        return element("g", title, element("path.cross", d=cross))


def attempts(history: RunHistory, anchor: str = "") -> Html | None:
    """Return a table with a row per attempt, whose number links to the element with the id `anchor` and that number."""
    past = history.iterations
    if history.first_numbers is None or not past:
        return None
    marks = [mark("good", "✓", "kept") if one.is_kept else mark("bad", "✗", "dropped") for one in past]
    signs = Column("", marks, kind=".cell")
    columns = [number_column(past, anchor or f"{history.run}-"), signs, *attempt_columns(past, history)]
    return table(columns, has_total=len(past) > 1)
