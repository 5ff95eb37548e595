"""Progress of a run: which iterations came closer to the goal, for how long none has, and which one was best.

Everything is computed from the run's own history, so a resumed run and `ralph show` come to the same result.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.check_counts import FailureCount, count_failures
from ralph.core.model import Check, Fingerprint, Iteration, Run, Turn, tree_files
from ralph.core.text import one_line, plural

Gain = Literal["", "checks", "tasks", "failures", "output"]


class MeasuredCheck(Struct, frozen=True):
    """The facts of a check that progress depends on: the failures that it reports, and a digest of its output."""

    name: str
    passed: bool
    count: FailureCount | None = None
    digest: str = ""


class ProgressStep(Struct, frozen=True, kw_only=True):
    """The facts of one iteration that progress depends on, which are small even if the checks printed a lot; and its
    progress, compared with the iterations before it.

    `gain` says what improved: more checks pass, more tasks are ticked, a check reports fewer failures, or the failing
    output is new; it is empty if nothing did. An iteration that isn't `counted` is ignored when a standstill is
    measured. `passing` are the checks that pass, without those that were found to be flaky.
    """

    number: int
    checks: tuple[MeasuredCheck, ...] = ()
    tasks_done: int = 0
    tree: tuple[str, str] | None = None
    checked: bool = True  # the checks were run
    counted: bool = True
    passing: int = 0
    gain: Gain = ""

    @property
    def failures(self) -> int | None:
        """The failures of all failing checks together; None if one of them doesn't say."""
        counts = [check.count for check in self.checks if not check.passed]
        return None if None in counts else sum(count.failures for count in counts if count)


def is_measurable(run: Run) -> bool:
    """Whether the run has checks or tasks; without them progress cannot be measured."""
    return run.seen.tasks is not None or any(i.checks or i.tasks_done is not None for i in run.iterations)


def measure(iteration: Iteration, before: Fingerprint | None) -> ProgressStep:
    """Return the facts of an iteration, without its progress; `before` is the tree that it began with.

    Failed turns aren't counted, nor are iterations with green checks that change files.
    """
    tree, failed = tree_files(iteration.tree), iteration.turn.failure is not None
    is_green_change = iteration.passes_checks and (not tree or tree != tree_files(before))
    return ProgressStep(
        number=iteration.number,
        checks=measure_checks(iteration.checks),
        tasks_done=iteration.tasks_done or 0,
        tree=tree,
        checked=iteration.checked,
        counted=iteration.checked and not failed and not is_green_change,
    )


def measure_checks(checks: Iterable[Check]) -> tuple[MeasuredCheck, ...]:
    return tuple(map(_measure_check, checks))


_VARIABLE = re.compile(
    r"(?:/tmp|/var/tmp|/var/folders|/private/var/folders|/dev/shm)/[^\s:'\")]*"
    r"|\b0x[0-9a-fA-F]+\b"
    r"|\b\d{1,9}(?:[.,:]\d{1,9}){0,3} ?(?:[nµum]?s|secs?|seconds?|m|min|minutes?)\b"
    r"|\b\d\d:\d\d(?::\d\d)?(?:\.\d{1,9})?\b"
)


@lru_cache(1024)
def _measure_check(check: Check) -> MeasuredCheck:
    """Return the facts of a check. The digest is that of its output without times, addresses, temporary paths and
    numbers."""
    if check.passed:
        return MeasuredCheck(check.name, True)
    count = None if check.timeout or check.void else count_failures(check.tail or check.head, check.tests)
    text = check.head if not check.cut else f"{check.head}\n{check.tail}"
    lines = _VARIABLE.sub("", text).strip().split("\n")
    last = lines.pop() if count is None else ""  # its numbers may be a count of failures
    normalized = re.sub(r"\d+", "N", "\n".join(lines)) + "\n" + last
    digest = blake2b(normalized.encode("utf-8", "replace"), digest_size=8).hexdigest()
    return MeasuredCheck(check.name, False, count, digest)


def steps(run: Run, new_outputs: int) -> list[ProgressStep]:
    """Return the progress of every iteration.

    New output counts as progress at most `new_outputs` times after the last gain of another kind.
    """
    measured = [measure(iteration, run.tree_before(iteration.number)) for iteration in run.iterations]
    return steps_of(measured, measure_checks(run.baseline or ()), new_outputs)


def steps_of(
    measured: Sequence[ProgressStep], baseline: tuple[MeasuredCheck, ...], new_outputs: int
) -> list[ProgressStep]:
    """Compare each iteration with those before it."""
    flaky = _flaky_greens(measured)
    most_passing = most_tasks = 0
    fewest: dict[str, FailureCount] = {}
    known_outputs: set[tuple[str, str]] = set()
    outputs_left = new_outputs

    def has_fewer_failures(check: MeasuredCheck) -> bool:
        lowest = fewest.get(check.name)
        return check.count is not None and lowest is not None and check.count.is_better_than(lowest)

    measured_steps = []
    for step in (ProgressStep(number=0, checks=baseline, counted=False), *measured):
        passing = sum(check.passed and (check.name, step.number) not in flaky for check in step.checks)
        outputs = {(check.name, check.digest) for check in step.checks if not check.passed}
        gain: Gain = ""
        if passing > most_passing:
            gain = "checks"
        elif step.tasks_done > most_tasks:
            gain = "tasks"
        elif any(map(has_fewer_failures, step.checks)):
            gain = "failures"
        elif outputs - known_outputs and outputs_left and step.counted:
            gain = "output"
        if gain:
            outputs_left = outputs_left - 1 if gain == "output" else new_outputs
        most_passing, most_tasks = max(most_passing, passing), max(most_tasks, step.tasks_done)
        known_outputs |= outputs
        for check in step.checks:
            if check.count and (check.name not in fewest or has_fewer_failures(check)):
                fewest[check.name] = check.count
        measured_steps.append(replace(step, passing=passing, gain=gain))
    return measured_steps[1:]


def stuck_for(run: Run, new_outputs: int, since: int = 0) -> int:
    """Return how many counted iterations followed the last progress, or iteration `since` if that is later."""
    counted = 0
    for step in reversed(steps(run, new_outputs)):
        if step.number <= since or step.gain:
            break
        counted += step.counted
    return counted


def best_iteration(run: Run) -> int:
    """Return the latest iteration with the most passing checks, then the fewest failures; 0 without iterations."""
    return best_step(steps(run, 0))


def best_step(measured: Sequence[ProgressStep]) -> int:
    def rank(step: ProgressStep) -> tuple[int, float, int]:
        failures = float("inf") if step.failures is None else step.failures
        return step.passing, -failures, step.number

    best = max((step for step in measured if step.checked), key=rank, default=None)
    return best.number if best else 0


def describe_standstill(run: Run, iterations: int) -> str:
    """Return how long the run has made no progress, which check stayed red, and which iteration was best."""
    history = steps(run, 0)
    text = f"no progress for {plural(iterations, 'iteration')}"
    red = next((check for check in history[-1].checks if not check.passed), None)
    if red:
        state = f"has {plural(red.count.failures, 'failure')}" if red.count else "is red"
        text += f'; "{one_line(red.name, 80)}" {state}'
    return f"{text} (best: iteration {best_step(history)})"


def _flaky_greens(measured: Sequence[ProgressStep]) -> set[tuple[str, int]]:
    """Return the checks that passed and later failed with the same files, each with the number of the iteration that it
    passed in."""
    red_later: set[tuple[str, tuple[str, str]]] = set()
    flaky = set()
    for step in reversed(measured):
        for check in step.checks:
            if step.tree and check.passed and (check.name, step.tree) in red_later:
                flaky.add((check.name, step.number))
            elif step.tree and not check.passed:
                red_later.add((check.name, step.tree))
    return flaky


MAX_TRIED, MAX_TRIED_ROW = 15, 130  # rows, and characters of each
GAINS: dict[Gain, str] = {
    "checks": "more checks pass",
    "tasks": "more tasks are done",
    "failures": "fewer failures",
    "output": "new output",
    "": "no progress",
}


def list_attempts(run: Run) -> str:
    """Return one line for each of the latest iterations."""
    return "\n".join(_row(step, run.iterations[step.number - 1].turn) for step in steps(run, 0)[-MAX_TRIED:])


def _row(step: ProgressStep, turn: Turn) -> str:
    failures = f", {plural(step.failures, 'failure')}" if step.failures else ""
    checks = f"{step.passing} of {len(step.checks)} checks pass{failures}" if step.checks else "no checks"
    result = "the turn failed"
    if not turn.failure:
        summary = next((line.strip() for line in turn.text.splitlines() if line.strip()), "")
        result = GAINS[step.gain] + (f": {one_line(summary, 50)}" if summary else "")
    agent = one_line(turn.agent.rpartition("/")[2], 20)
    return one_line(f"{step.number}. {agent}: {checks}: {result}", MAX_TRIED_ROW)
