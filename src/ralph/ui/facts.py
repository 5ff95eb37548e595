"""What is known of the run that is looked at? Its checks, iteration by iteration, its todo list, what it does now."""

from msgspec import Struct

from ralph.core import events as e
from ralph.show.status import Status
from ralph.show.style import Style
from ralph.show.talk import short

MOST_ITERATIONS = 400
MOST_CHECKS = 50


class Checked(Struct, frozen=True):
    """A check as it stands: `passed` None while it runs, or before its first time."""

    name: str
    passed: bool | None = None
    seconds: float = 0.0
    is_running: bool = False


class Bar(Struct, frozen=True):
    """One iteration in the graph. `is_red`: a failed turn, or a check that did not pass."""

    number: int
    passed: int
    checks: int
    cost: float
    is_red: bool = False


class Facts:
    """A listener: bounded, however long the run."""

    def __init__(self) -> None:
        self.goal = self.agent = self.preset = self.worktree = ""
        self.iteration = 0
        self.began = 0.0
        self.todo: tuple[e.TodoItem, ...] = ()
        self.checks: dict[str, Checked] = {}
        self.bars: list[Bar] = []
        self.finished: e.RunFinished | None = None
        self._status = Status(Style())

    @property
    def activity(self) -> tuple[str, float]:
        """What it does, and since when."""
        return self._status.activity

    def hear(self, event: e.Event, at: float) -> None:
        self._status(event, at)
        match event:
            case e.RunStarted():
                self._start(event, at)
            case e.IterationStarted():
                self.iteration = event.iteration
            case e.AgentStarted() if event.purpose == "work":
                self.todo = ()
            case e.TodoUpdated():
                self.todo = event.items
            case e.CheckStarted():
                self._note(Checked(short(event.name, 200), is_running=True))
            case e.CheckFinished():
                self._note(Checked(short(event.name, 200), event.passed, event.duration_s))
            case e.IterationFinished():
                self._plot(event)
            case e.RunFinished():
                self.finished = event

    def _start(self, event: e.RunStarted, at: float) -> None:
        self.goal, self.agent, self.preset = event.goal, event.agent, event.preset
        self.worktree = event.worktree
        self.began = self.began or at
        self.finished = None
        known = self.checks
        names = [short(name, 200) for name in event.checks[:MOST_CHECKS]]
        self.checks = {name: known.get(name, Checked(name)) for name in names}

    def _note(self, check: Checked) -> None:
        if check.name in self.checks or len(self.checks) < MOST_CHECKS:
            self.checks[check.name] = check

    def _plot(self, event: e.IterationFinished) -> None:
        record = event.record
        passed = sum(check.passed for check in record.checks)
        is_red = record.turn.failure is not None or passed < len(record.checks)
        cost = record.usage.cost_usd or 0.0
        self.bars.append(Bar(event.iteration, passed, len(record.checks), cost, is_red))
        del self.bars[:-MOST_ITERATIONS]
