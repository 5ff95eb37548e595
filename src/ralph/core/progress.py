"""Progress of a run: which iterations came closer to the goal, for how long none has, and which one was best.

Everything is computed from the run's own history, so a resumed run and `ralph show` come to the same result.
"""

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from ralph.core.check_counts import FailureCount, count_failures
from ralph.core.model import Check, Iteration, Run, tree_files

Gain = Literal["", "checks", "tasks", "failures", "output"]


class ProgressStep(Struct, frozen=True, kw_only=True):
    """What one iteration did for the run.

    `gain` says what got better: more checks pass, more tasks are ticked, a check reports fewer failures, or the failing
    output is new. Empty: nothing. An iteration that is not `counted` is neither progress nor the lack of it.
    """

    number: int
    passing: int
    total: int
    failures: int | None  # of all failing checks together; None if one of them doesn't say
    gain: Gain = ""
    counted: bool = True


class Standstill(Struct, frozen=True):
    """How long a run has made no progress, and what it is stuck at."""

    iterations: int
    best: int  # the number of the best iteration; 0 if there is none
    red: str  # a check that is still red
    failures: int | None
    since: int  # the first iteration from which that check has had this number of failures


def is_measurable(run: Run) -> bool:
    """Whether the run has checks or tasks: without them nothing measures progress."""
    return run.seen.tasks is not None or any(i.checks or i.tasks_done is not None for i in run.iterations)


def steps(run: Run, new_outputs: int) -> list[ProgressStep]:
    """Judge every iteration. New output counts at most `new_outputs` times after the last real gain."""
    flaky = _flaky_greens(run.iterations)
    best = _BestSoFar(run.baseline or ())
    outputs_left = new_outputs
    before = tree_files(run.base_tree)
    found = []
    for iteration in run.iterations:
        passing = _passing(iteration, flaky)
        gain = best.gain_of(iteration, passing)
        if gain == "output":
            gain, outputs_left = ("output", outputs_left - 1) if outputs_left else ("", 0)
        elif gain:
            outputs_left = new_outputs
        best.add(iteration, passing)
        step = ProgressStep(
            number=iteration.number,
            passing=passing,
            total=len(iteration.checks),
            failures=_failures(iteration.checks),
            gain=gain,
            counted=_is_counted(iteration, before),
        )
        before = tree_files(iteration.tree)
        found.append(step)
    return found


class _BestSoFar:
    """The best that a run has reached so far, and the failing outputs that it has seen."""

    def __init__(self, baseline: Sequence[Check]) -> None:
        self._passing = sum(check.passed for check in baseline)
        self._tasks = 0
        self._fewest: dict[str, FailureCount] = {}
        self._outputs: set[tuple[str, str]] = set()
        self._learn(baseline)

    def gain_of(self, iteration: Iteration, passing: int) -> Gain:
        if passing > self._passing:
            return "checks"
        if (iteration.tasks_done or 0) > self._tasks:
            return "tasks"
        if any(self._is_better(check) for check in iteration.checks):
            return "failures"
        return "output" if _fingerprints(iteration.checks) - self._outputs else ""

    def add(self, iteration: Iteration, passing: int) -> None:
        self._passing = max(self._passing, passing)
        self._tasks = max(self._tasks, iteration.tasks_done or 0)
        self._learn(iteration.checks)

    def _learn(self, checks: Sequence[Check]) -> None:
        self._outputs |= _fingerprints(checks)
        for check in checks:
            count = _count(check)
            if count and (check.name not in self._fewest or self._is_better(check)):
                self._fewest[check.name] = count

    def _is_better(self, check: Check) -> bool:
        """Whether a red check that has reported a count before reports fewer failures than ever."""
        count = _count(check)
        return count is not None and check.name in self._fewest and count.is_better_than(self._fewest[check.name])


def stuck_for(run: Run, new_outputs: int, since: int = 0) -> int:
    """Return how many counted iterations after number `since` came without progress, up to now."""
    counted = 0
    for step in reversed(steps(run, new_outputs)):
        if step.number <= since or (step.gain and step.counted):
            break
        counted += step.counted
    return counted


def best_iteration(run: Run) -> int:
    """Return the latest iteration with the most passing checks, then the fewest failures; 0 without iterations."""
    found = [step for step in steps(run, 0) if not run.iterations[step.number - 1].turn.failure]
    if not found:
        return 0
    return max(found, key=lambda step: (step.passing, -_or_infinite(step.failures), step.number)).number


def standstill(run: Run, new_outputs: int, since: int = 0) -> Standstill | None:
    """Describe the lack of progress; None if the last counted iteration made some, or nothing measures it."""
    iterations = stuck_for(run, new_outputs, since)
    if not iterations or not is_measurable(run):
        return None
    best = best_iteration(run)
    red = next((check for check in run.iterations[-1].checks if not check.passed), None)
    count = _count(red) if red else None
    first = run.iterations[-1].number
    for iteration in reversed(run.iterations):
        same = next((check for check in iteration.checks if red and check.name == red.name), None)
        if same is None or same.passed or _count(same) != count:
            break
        first = iteration.number
    return Standstill(iterations, best, red.name if red else "", count.failures if count else None, first)


def _is_counted(iteration: Iteration, before: str) -> bool:
    """Failed turns don't count, nor do iterations that change files while every check is green."""
    if iteration.turn.failure or not iteration.checked:
        return False
    return not (iteration.passes_checks and tree_files(iteration.tree) != before)


def _passing(iteration: Iteration, flaky: set[tuple[str, int]]) -> int:
    return sum(check.passed and (check.name, iteration.number) not in flaky for check in iteration.checks)


def _flaky_greens(iterations: Sequence[Iteration]) -> set[tuple[str, int]]:
    """Return the greens that turned red later although no file had changed: check name and iteration."""
    red_later: set[tuple[str, str]] = set()
    flaky = set()
    for iteration in reversed(iterations):
        tree = tree_files(iteration.tree)
        for check in iteration.checks:
            if tree and check.passed and (check.name, tree) in red_later:
                flaky.add((check.name, iteration.number))
            elif tree and not check.passed:
                red_later.add((check.name, tree))
    return flaky


def _count(check: Check) -> FailureCount | None:
    """Return the failures that a red check reports. A check that timed out reports nothing."""
    if check.passed or check.timeout or check.void:
        return None
    return count_failures(check.tail or check.head)


def _failures(checks: Sequence[Check]) -> int | None:
    counts = [_count(check) for check in checks if not check.passed]
    return None if any(count is None for count in counts) else sum(count.failures for count in counts if count)


def _or_infinite(failures: int | None) -> float:
    return float("inf") if failures is None else failures


_TEMPORARY = re.compile(r"(?:/tmp|/var/tmp|/var/folders|/private/var/folders|/dev/shm)/[^\s:'\")]*")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
_TIME = re.compile(
    r"\b\d{1,9}(?:[.,:]\d{1,9}){0,3} ?(?:[nµum]?s|secs?|seconds?|m|min|minutes?)\b"
    r"|\b\d\d:\d\d(?::\d\d)?(?:\.\d{1,9})?\b"
)
_NUMBER = re.compile(r"\d+")


def _fingerprints(checks: Sequence[Check]) -> set[tuple[str, str]]:
    """Return the failing output without times, addresses, temporary paths and numbers.

    The numbers in the last line of an unknown format stay: they may be a count of failures.
    """
    return {(check.name, _normalize(check)) for check in checks if not check.passed}


def _normalize(check: Check) -> str:
    text = check.head if not check.cut else f"{check.head}\n{check.tail}"
    for pattern in (_TEMPORARY, _ADDRESS, _TIME):
        text = pattern.sub("", text)
    lines = text.strip().split("\n")
    last = lines.pop() if _count(check) is None else ""
    return _NUMBER.sub("N", "\n".join(lines)) + "\n" + last
