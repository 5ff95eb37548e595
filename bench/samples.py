"""Samples and rows: medians of contenders that take turns, so that a busy moment affects all alike."""

from collections.abc import Callable, Mapping
from statistics import median, quantiles

from msgspec import Struct

Contenders = Mapping[str, Callable[[], float]]


class Sample(Struct, frozen=True):
    """The values of one contender, one for each round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def noise(self) -> float:
        """Half the interquartile range, as a fraction of the median."""
        if len(self.values) < 4 or not self.median:
            return 0.0
        low, _, high = quantiles(self.values, n=4)
        return (high - low) / 2 / self.median

    def times(self, rival: "Sample") -> float:
        """Return the median ratio to the rival, round by round."""
        return median(ours / theirs for ours, theirs in zip(self.values, rival.values, strict=True))


class Wanted(Struct, frozen=True):
    """The budget: at most `limit` times the rival, or at most (with `least`: at least) `limit` without one."""

    limit: float
    rival: str = ""
    least: bool = False

    def is_met(self, row: "Row") -> bool | None:
        """Return None if the rival could not be measured."""
        if self.rival and self.rival not in row.rivals:
            return None
        value = row.ralph.times(row.rivals[self.rival]) if self.rival else row.ralph.median
        return value >= self.limit if self.least else value <= self.limit

    def words(self, unit: str) -> str:
        sign = "≥" if self.least else "≤"
        return f"{sign} {self.limit:g} × {self.rival}" if self.rival else f"{sign} {self.limit:g} {unit}".rstrip()


class Row(Struct, frozen=True):
    """One line of the table: ralph compared with its rivals."""

    measure: str
    ralph: Sample
    unit: str = "ms"
    rivals: Mapping[str, Sample] = {}
    wanted: Wanted | None = None


def taking_turns(contenders: Contenders, rounds: int) -> dict[str, Sample]:
    """Run every contender once per round, after one round of warm-up."""
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for at in range(rounds + 1):
        for name, run in contenders.items():
            value = run()
            if at:
                values[name].append(value)
    return {name: Sample(tuple(some)) for name, some in values.items()}


def compared(measure: str, contenders: Contenders, rounds: int, wanted: Wanted | None = None) -> Row:
    """Return the row of a measurement in milliseconds; one of the contenders must be ralph."""
    samples = taking_turns(contenders, rounds)
    return Row(measure, samples.pop("ralph"), "ms", samples, wanted)
