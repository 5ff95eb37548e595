"""What is remembered of a run while it is watched, and how did it end, in one plain sentence?"""

from msgspec import Struct

from ralph.core.events import ClaimRejected, Event, IterationFinished, IterationStarted, RunFinished, ScmFinished
from ralph.core.model import Iteration
from ralph.core.text import short
from ralph.show.words import duration, money, plural

_CUT_OFF = ("interrupted", "failed", "fatal")  # with which the last turn may have been


class Row(Struct, frozen=True):
    """One iteration, as a line of the summary."""

    number: int
    checks: tuple[tuple[str, bool], ...]
    tools: int | None
    cost: float | None
    seconds: float
    happened: str

    @property
    def failed(self) -> list[str]:
        return [name for name, passed in self.checks if not passed]


class Tally:
    """A listener that prints nothing."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._refused: list[str] = []
        self._committed = False
        self._last: Iteration | None = None

    @property
    def failing(self) -> list[str]:
        """The checks that were red after the last iteration."""
        return self.rows[-1].failed if self.rows else []

    def __call__(self, event: Event) -> None:
        if isinstance(event, IterationFinished):
            self._settle()
            self._last = event.record
        elif isinstance(event, ClaimRejected):
            self._refused.append(short(event.gate, 40))
        elif isinstance(event, ScmFinished):
            self._committed = self._committed or (event.ok and event.task == "commit")
        elif isinstance(event, IterationStarted):  # the one before has been judged
            self._settle()
        elif isinstance(event, RunFinished):
            self._settle(event)

    def _settle(self, finished: RunFinished | None = None) -> None:
        """What is said about an iteration after its end (was its claim believed?) completes its row."""
        last, self._last = self._last, None
        if last is None:
            return
        checks = tuple((short(check.name, 60), check.passed) for check in last.checks)
        happened = self._happened(last, finished.outcome if finished else "")
        usage = last.usage
        self.rows.append(Row(last.number, checks, last.turn.tool_calls, usage.cost_usd, last.duration, happened))
        self._refused, self._committed = [], False

    def _happened(self, last: Iteration, outcome: str) -> str:
        failure = last.turn.failure
        what = "done" if outcome == "done" else ""
        if not what and failure:
            what = f"failed: {short(failure.reason, 200)}"
        if not what and self._refused:
            what = f"claim refused: {', '.join(dict.fromkeys(self._refused))}"
        if not what and last.is_green:  # whoever was interrupted has not looked for a claim
            what = "interrupted" if outcome == "interrupted" else "no claim"
        what = what or "checks failed"
        if self._committed:
            what += ", committed"
        return what + (f", {plural(len(last.reviews), 'review')}" if last.reviews else "")


def outcome_sentence(finished: RunFinished, failing: list[str] | None = None) -> str:
    """How the run ended. `failing`: the checks that were red after the last iteration."""
    outcome = short(finished.outcome, 40) + ("" if finished.verified or finished.outcome != "done" else " (unverified)")
    after = ""
    if finished.iterations and finished.outcome not in ("exhausted", "stalled"):  # whose reasons say it themselves
        after = f" after {plural(finished.iterations, 'iteration')}"
    reason = short(finished.reason, 300)
    if finished.outcome == "done" and not finished.verified:
        reason += "; no gate was configured, so nothing has verified it"
    elif finished.outcome != "done" and failing:
        names = ", ".join(short(name, 60) for name in failing[:3])
        more = f" and {len(failing) - 3} more" if len(failing) > 3 else ""
        reason += f"; still failing: {names}{more}"
    spent = duration(finished.duration_s)
    if finished.cost_usd is not None:
        spent += f", {money(finished.cost_usd)}"
    return f"ralph: {outcome}{after}{': ' if reason else ''}{reason} ({spent})"


def whereabouts(finished: RunFinished) -> list[str]:
    """Where the work of an isolated run is, and how to take it over."""
    if not finished.worktree and not finished.branch:
        return []
    place = f" in {short(finished.worktree, 500)}" if finished.worktree else ""
    branch = short(finished.branch, 200)
    if finished.untouched:
        return [f"Nothing was changed{f' on branch {branch}' if branch else ''}{place}"]
    lines = [f"The work is{f' on branch {branch}' if branch else ''}{place}"]
    taken = "what is committed of it" if finished.outcome in _CUT_OFF else "it"
    return [*lines, f"To take {taken} over: git merge {branch}"] if branch else lines
