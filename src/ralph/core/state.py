"""The summaries of a run and of a backlog, and how events change them."""

from typing import TypeVar

from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from ralph.core import events as e
from ralph.core.backlog import displayed_states
from ralph.core.backlog_events import BacklogState
from ralph.core.model import Usage
from ralph.core.text import one_line, short

GOAL_SHOWN = 500
REASON_SHOWN = 500

STOP_REQUEST = "a request to stop"
"""Takes the place of the signal's name if `ralph stop` ends a run that ignores signals."""


class Summary(Struct, omit_defaults=True, kw_only=True):
    """What the summaries of a run and of a backlog have in common. They are stored in `state.json`, so that `ralph ps`
    reads no journal.

    Without an `outcome` the run is running, or its process died. Times are epoch seconds.
    """

    run: str
    pid: int = 0
    """With `start` and `machine`: the process that plays it."""
    start: str = ""
    machine: str = ""
    """Empty in records of earlier versions."""
    ignores_signals: bool = False
    workspace: str = ""
    branch: str = ""
    goal: str = ""
    version: str = ""
    began: float = 0.0
    changed: float = 0.0
    cost_usd: float | None = None
    paused: str = ""
    """The reason for waiting for a person."""
    doing: str = ""
    """The activity since `since`."""
    since: float = 0.0
    outcome: str = ""
    reason: str = ""
    untouched: bool = False
    """Nothing is left to accept: it changed nothing, or its result was pushed."""
    seconds: float = 0.0
    exit_code: int | None = None

    @property
    def has_begun(self) -> bool:
        return bool(self.workspace)

    @property
    def last_activity(self) -> str:
        """What a list shows as the activity once it has ended."""
        return ""


class RunSummary(Summary, omit_defaults=True, kw_only=True):
    """The current state of a run, or how it ended."""

    kind: str = ""
    """`plan` for a run that makes a plan."""
    worktree: str = ""
    agent: str = ""
    preset: str = ""
    task: str = ""
    work: str = ""
    """The id of the backlog that the run is for."""
    backlog_task: str = ""
    """The key of the task that the run is for."""
    max_iterations: int | None = None
    finished: int = 0
    """Finished iterations."""
    checks: int = 0
    """Checks of the last iteration."""
    checks_passed: int = 0
    tokens: int = 0
    waits: str = ""
    """The reason for a wait until `until`."""
    until: float = 0.0
    asks: bool = False
    """`paused` waits for the answer to a question."""
    stopping: bool = False
    """The run ends after the current turn."""
    given: int = 0
    """The user's notes in the current prompt."""
    interrupted_by: str = ""
    verified: bool = True
    untested: bool = False
    """No check tests the copy in which the agent worked."""
    rights: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """The state of a running run in one word."""
        if self.stopping:
            return "stopping"
        if self.paused:
            return "asking" if self.asks else "paused"
        return "waiting" if self.waits else "running"

    @property
    def has_begun(self) -> bool:
        return bool(self.workspace or self.finished)

    @property
    def has_result(self) -> bool:
        """Whether it ended with work on its own branch."""
        return bool(self.outcome and self.branch and not self.untouched and not self.work)

    def why_not_tell(self) -> str:
        """Return why it cannot be given a note; "" if it can."""
        return "is done" if self.outcome == "done" else ""


class BacklogSummary(Summary, omit_defaults=True, kw_only=True, tag_field="kind", tag="work"):
    """The current state of a backlog, or how it ended."""

    tasks: int = 0
    """All tasks except withdrawn ones."""
    merged: int = 0
    working: int = 0
    ready: int = 0
    """Verified tasks that wait for their merge."""
    parked: int = 0
    blocked: int = 0

    kind = "work"
    # A backlog has none of these. They are no fields, so they are not stored.
    worktree = task = work = backlog_task = agent = interrupted_by = ""
    rights = questions = tuple[str, ...]()
    tokens, until, verified, notes, max_iterations = 0, 0.0, True, 0, None

    @property
    def state(self) -> str:
        """The state of a running backlog in one word."""
        return "paused" if self.paused else "running"

    @property
    def has_result(self) -> bool:
        """Whether it ended with merged tasks that are not on the user's branch yet."""
        return bool(self.outcome and self.merged and not self.untouched)

    @property
    def last_activity(self) -> str:
        """The numbers of its tasks."""
        return self.doing

    def why_not_tell(self) -> str:
        """Return why it cannot be given a note."""
        return "is a backlog: name one of its tasks"


AnySummary = RunSummary | BacklogSummary

_RUN, _BACKLOG = Decoder(RunSummary), Decoder(BacklogSummary)


def decode_summary(data: bytes) -> AnySummary:
    """Decode a `state.json`."""
    facts = _RUN.decode(data)
    if facts.kind != BacklogSummary.kind:
        return facts
    backlog = _BACKLOG.decode(data)
    # Before there were two summaries, the numbers of tasks were stored as numbers of checks.
    return backlog if backlog.tasks else replace(backlog, tasks=facts.checks, merged=facts.checks_passed)


Facts = TypeVar("Facts", bound=RunSummary)

_FROM_START = (
    *("pid", "agent", "preset", "workspace", "worktree", "branch", "task", "work", "backlog_task"),
    *("max_iterations", "rights", "version"),
)
_FROM_END = ("interrupted_by", "verified", "untested", "untouched", "cost_usd", "exit_code")
_NOT_ENDED = {"waits": "", "paused": "", "outcome": "", "reason": "", "interrupted_by": "", "exit_code": None}


def after(facts: Facts, event: e.Event, at: float) -> Facts:
    """Return the summary after `event`, the same object if the event changes nothing in it."""
    match event:
        case e.RunStarted():
            changes = {name: getattr(event, name) for name in _FROM_START}
            goal, began = one_line(event.goal, GOAL_SHOWN), facts.began or at
            return replace(facts, **changes, **_NOT_ENDED, goal=goal, began=began, changed=at)
        case e.IterationFinished():
            checks = event.record.checks
            return replace(
                _spent(facts, event.record.usage),
                finished=event.iteration,
                checks=len(checks),
                checks_passed=sum(check.passed for check in checks),
                waits="",
                given=0,
                changed=at,
            )
        case e.FilesAccepted():
            passed = sum(check.passed for check in event.record.checks)
            return replace(_spent(facts, event.record.review_usage), checks_passed=passed, changed=at)
        case e.TurnNotCounted():
            return replace(_spent(facts, event.turn.usage), waits="", given=0, changed=at)
        case e.Spent():
            return replace(_spent(facts, event.usage), changed=at)
        case e.PersonTold():
            return replace(facts, given=len(event.notes), changed=at)
        case e.Waiting():
            return replace(facts, waits=one_line(event.reason, REASON_SHOWN), until=event.until, changed=at)
        case e.Paused():
            why = one_line(event.reason, REASON_SHOWN)
            return replace(facts, waits="", paused=why, asks=event.asks, changed=at)
        case e.AgentStarted() | e.Continued() if facts.waits or facts.paused:
            return replace(facts, waits="", paused="", changed=at)
        case e.RunFinished():
            changes = {name: getattr(event, name) for name in _FROM_END}
            return replace(
                facts,
                **changes,
                outcome=event.outcome.value,
                reason=one_line(event.reason, REASON_SHOWN),
                finished=event.iterations,
                seconds=event.duration_s,
                worktree=event.worktree or facts.worktree,
                branch=event.branch or facts.branch,
                waits="",
                paused="",
                changed=at,
            )
    return facts


def after_board(facts: BacklogSummary, state: BacklogState, at: float) -> BacklogSummary:
    """Return the summary of a backlog that is in this state."""
    board, finished = state.board, state.finished
    states = [*displayed_states(board).values()]
    counts = {name: states.count(name) for name in ("merged", "working", "ready", "parked", "blocked")}
    return replace(
        facts,
        **counts,
        tasks=len(states) - states.count("withdrawn"),
        doing=", ".join(f"{count} {name}" for name, count in counts.items() if count),
        since=at,
        began=state.began or facts.began,  # it may have begun on another machine
        changed=at,
        cost_usd=board.spent if board.costs else None,
        paused="paused by a person" if board.is_paused else "",
        outcome=finished.outcome if finished else "",
        reason=finished.reason if finished else "",
        exit_code=finished.exit_code if finished else None,
        seconds=finished.duration_s if finished else facts.seconds,
    )


def _spent(facts: Facts, usage: Usage) -> Facts:
    total = Usage(cost_usd=facts.cost_usd).plus(usage)
    return replace(facts, cost_usd=total.cost_usd, tokens=facts.tokens + usage.tokens)


MAX_OPEN_TOOLS = 100

_STARTED = {
    e.CheckStarted: "check",
    e.MeasurementStarted: "measuring",
    e.ReviewStarted: "review",
    e.ExamStarted: "exam",
}


class Activity:
    """What a run is doing (`text`), and `since` when (epoch seconds): the latest activity that has not ended."""

    def __init__(self) -> None:
        self.text, self.since = "", 0.0
        self._root = ""
        self._tools: dict[str, str] = {}  # the calls of tools that are running

    def __call__(self, event: e.Event, now: float) -> None:
        text = self._after(event)
        if text is not None and text != self.text:
            self.text, self.since = text, now

    def _after(self, event: e.Event) -> str | None:
        """Return what the run does now; None if `event` doesn't change it."""
        match event:
            case e.AgentText():
                return self._latest_tool()
            case e.ToolStarted():
                argument = short(event.input.replace(self._root, "") if self._root else event.input, 200)
                text = short(event.name, 80) + (f"({argument})" if argument else "")
                if len(self._tools) < MAX_OPEN_TOOLS:
                    self._tools[event.id] = text
                return text
            case e.ToolFinished():
                self._tools.pop(event.id, None)
                return self._latest_tool()
            case e.AgentStarted():
                self._tools.clear()
                return short(event.agent, 40) + (": commit message" if event.purpose == "message" else "")
            case e.AgentProgress():
                return "thinking" if event.routine else short(event.text, 200)
            case e.IterationStarted():
                return "preparing"
            case e.CheckStarted() | e.MeasurementStarted() | e.ReviewStarted() | e.ExamStarted():
                return f"{_STARTED[type(event)]} {short(event.name, 200)}"
            case e.ProofStarted():
                return "running the checks without parts of the change"
            case e.Waiting():
                return f"waiting: {short(event.reason, 200)}"
            case e.Paused():
                return f"paused: {short(event.reason, 200)}"
            case e.AgentFinished() | e.IterationFinished() | e.Continued() | e.StartMeasured() | e.EndMeasured():
                self._tools.clear()
                return ""
            case e.CheckFinished() | e.ReviewFinished() | e.ExamFinished() | e.ProofFinished() | e.FilesAccepted():
                return ""
            case e.RunStarted():
                self._root = f"{event.worktree or event.workspace}/"
        return None

    def _latest_tool(self) -> str:
        return next(reversed(self._tools.values()), "thinking")
