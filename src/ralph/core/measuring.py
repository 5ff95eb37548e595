"""Measurements of a number that a run optimises: reading it, telling noise from a gain, and keeping only real gains.

For a noisy metric, the best version so far and the candidate are measured in pairs, in alternating order, so that a
change in the machine's load affects both. The decision is sequential: a worse candidate is dropped early.
"""

import math
import re
from collections.abc import Sequence
from statistics import median
from typing import Literal

from msgspec import Struct

Noise = Literal["exact", "nearly exact", "noisy"]
Decision = Literal["keep", "drop", "more"]

START_RUNS = 3  # of the starting point, to see how noisy the metric is
MIN_GAIN = 0.01
SPREAD_MARGIN = 5  # a metric is nearly exact if this many times its spread is less than the smallest gain that counts
FIRST_LOOK = 3  # pairs after which a candidate that was never better is dropped
LOOKS = {7: 7, 14: 12, 21: 17}  # pairs: how many of them must be better
MAX_PAIRS = max(LOOKS)
UNCERTAIN_SPREADS = 3  # without time for pairs, a gain must be this many times the spread

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


class Metric(Struct, frozen=True):
    """What to optimise. `name` is the metric's name in the output; empty: the last line is only the number."""

    maximize: bool = False
    name: str = ""
    min_gain: float = MIN_GAIN
    unit: str = ""
    target: float | None = None

    def gain(self, before: float, after: float) -> float:
        """Return the relative gain from `before` to `after`; positive is better."""
        change = after - before if self.maximize else before - after
        if not change:
            return 0.0
        return change / abs(before) if before else math.copysign(math.inf, change)

    def has_reached_target(self, value: float) -> bool:
        return self.target is not None and (value >= self.target if self.maximize else value <= self.target)


class Start(Struct, frozen=True):
    """The measurements of the version that a run starts from."""

    metric: Metric
    values: tuple[float, ...]

    @property
    def value(self) -> float:
        return median(self.values)

    @property
    def noise(self) -> Noise:
        return classify_noise(self.values, self.metric.min_gain)


class Comparison(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A candidate compared with the best version before it, or at the end of a run the best version with the start."""

    before: float
    """The median of the old version; without `pairs` its only value."""
    after: float | None = None
    """The median of the new version; without `pairs` its only value."""
    gain: float = 0.0
    """The median gain of all pairs."""
    pairs: int = 0
    better: int = 0
    kept: bool = False
    problem: str = ""
    """Why there is no number."""
    is_certain: bool = True
    """False if there was no time for enough pairs."""
    is_noisy: bool = False
    """One version gave two values, so the metric is noisy from now on."""


def read_number(output: str, name: str = "") -> float | None:
    """Return the measured number in a command's output; None if there is none, or it is not finite.

    Without a name the last line that is not empty must be the number and nothing else. With one, the last line
    `NAME=value`, `NAME: value` or `METRIC NAME=value` counts.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if not name:
        text = lines[-1] if lines else ""
    else:
        labelled = re.compile(rf"(?:METRIC\s+)?{re.escape(name)}\s*[=:]\s*(\S+)")
        numbers = [match[1] for line in lines if (match := labelled.fullmatch(line))]
        text = numbers[-1] if numbers else ""
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    return number if math.isfinite(number) else None


def classify_noise(values: Sequence[float], min_gain: float) -> Noise:
    """Return how noisy the metric is, from a few runs of the same version."""
    if len(set(values)) < 2:
        return "exact"
    return "nearly exact" if spread(values) * SPREAD_MARGIN < min_gain else "noisy"


def spread(values: Sequence[float]) -> float:
    """Return the distance between the smallest and the largest value, relative to the median."""
    middle = abs(median(values))
    return (max(values) - min(values)) / middle if middle else math.inf


def run_to_run_difference(values: Sequence[float]) -> float:
    """Return the median difference between two runs of the same version, relative to the median value."""
    middle = abs(median(values))
    differences = [abs(value - other) for at, value in enumerate(values) for other in values[at + 1 :]]
    return median(differences) / middle if middle and differences else 0.0


def visible_gain(values: Sequence[float], noise: Noise, min_gain: float) -> float:
    """Return the smallest relative gain that is likely to be noticed."""
    return max(min_gain, 2 * run_to_run_difference(values)) if noise == "noisy" else min_gain


class Pairs(Struct, frozen=True):
    """Measurements of the best version so far and of a candidate, taken side by side."""

    metric: Metric
    values: tuple[tuple[float, float], ...] = ()

    def plus(self, best: float, candidate: float) -> "Pairs":
        return Pairs(self.metric, (*self.values, (best, candidate)))

    @property
    def better(self) -> int:
        """In how many pairs the candidate was better."""
        return sum(self.metric.gain(best, candidate) > 0 for best, candidate in self.values)

    @property
    def gain(self) -> float:
        return median(self.metric.gain(best, candidate) for best, candidate in self.values) if self.values else 0.0

    def decide(self) -> Decision:
        pairs = len(self.values)
        if pairs == FIRST_LOOK and not self.better:
            return "drop"
        if pairs not in LOOKS:
            return "more"
        if self.gain < self.metric.min_gain / 2:
            return "drop"
        if self.better >= LOOKS[pairs] and self.gain >= self.metric.min_gain:
            return "keep"
        return "drop" if pairs == MAX_PAIRS else "more"


def decide_once(metric: Metric, noise: Noise, best: float, candidate: float) -> Decision:
    """Decide about an exact or nearly exact metric from one run of the candidate."""
    gain = metric.gain(best, candidate)
    return "keep" if gain > 0 and (noise == "exact" or gain >= metric.min_gain) else "drop"


def decide_without_time(metric: Metric, start: Sequence[float], gain: float) -> Decision:
    """Decide about a noisy metric whose command takes too long for seven pairs."""
    return "keep" if gain >= max(metric.min_gain, UNCERTAIN_SPREADS * spread(start)) else "drop"
