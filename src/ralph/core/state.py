"""The summary of a run, and how each event changes it."""

from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ralph.core import events as e
from ralph.core.model import Usage
from ralph.core.text import one_line, short

GOAL_SHOWN = 500
REASON_SHOWN = 500

STOP_REQUEST = "a request to stop"
"""Takes the place of the signal's name if `ralph stop` ends a run that ignores signals."""


class RunSummary(Struct, omit_defaults=True, kw_only=True):
    """The current state of a run, or how it ended. It is stored in `state.json`, so that `ralph ps` reads no journal.

    Without an `outcome` the run is running, or its process died. Times are epoch seconds.

    - `pid`, `start` and `host` identify the process that plays the run.
    - `finished` counts the iterations.
    - `checks` and `checks_passed` are counts of the last iteration.
    - `waits` is the reason for a wait until `until`.
    - `paused` is the reason for waiting for a person, who must answer a question if it `asks`.
    - `stopping`: the run ends after the current turn.
    - `given` counts a person's notes in the current prompt.
    - `doing` is the activity since `since`.
    - `kind` is "work" for a backlog, and "plan" for a run that makes a plan.
    - `work` and `backlog_task` name the backlog and the task that the run is for.
    - `untouched`: it changed nothing in its worktree.
    """

    run: str
    pid: int = 0
    start: str = ""
    host: str = ""
    ignores_signals: bool = False
    workspace: str = ""
    worktree: str = ""
    branch: str = ""
    goal: str = ""
    agent: str = ""
    preset: str = ""
    task: str = ""
    kind: str = ""
    work: str = ""
    backlog_task: str = ""
    version: str = ""
    began: float = 0.0
    changed: float = 0.0
    max_iterations: int | None = None
    finished: int = 0
    checks: int = 0
    checks_passed: int = 0
    cost_usd: float | None = None
    tokens: int = 0
    waits: str = ""
    until: float = 0.0
    paused: str = ""
    asks: bool = False
    stopping: bool = False
    given: int = 0
    doing: str = ""
    since: float = 0.0
    outcome: str = ""
    reason: str = ""
    interrupted_by: str = ""
    verified: bool = True
    untouched: bool = False
    seconds: float = 0.0
    exit_code: int | None = None
    rights: tuple[str, ...] = ()


Summary = TypeVar("Summary", bound=RunSummary)

_FROM_START = (
    *("pid", "agent", "preset", "workspace", "worktree", "branch", "task", "work", "backlog_task"),
    *("max_iterations", "rights", "version"),
)
_FROM_END = ("outcome", "interrupted_by", "verified", "untouched", "cost_usd", "exit_code")
_NOT_ENDED = {"waits": "", "paused": "", "outcome": "", "reason": "", "interrupted_by": "", "exit_code": None}


def after(facts: Summary, event: e.Event, at: float) -> Summary:
    """Return the summary after `event`, the same object if the event changes nothing in it."""
    match event:
        case e.RunStarted():
            known = {name: getattr(event, name) for name in _FROM_START}
            goal, began = one_line(event.goal, GOAL_SHOWN), facts.began or at
            return replace(facts, **known, **_NOT_ENDED, goal=goal, began=began, changed=at)
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
            known = {name: getattr(event, name) for name in _FROM_END}
            return replace(
                facts,
                **known,
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


def _spent(facts: Summary, usage: Usage) -> Summary:
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
                given = short(event.input.replace(self._root, "") if self._root else event.input, 200)
                text = short(event.name, 80) + (f"({given})" if given else "")
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
            case e.CheckFinished() | e.ReviewFinished() | e.ExamFinished() | e.ProofFinished():
                return ""
            case e.RunStarted():
                self._root = f"{event.worktree or event.workspace}/"
        return None

    def _latest_tool(self) -> str:
        return next(reversed(self._tools.values()), "thinking")
