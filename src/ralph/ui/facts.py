"""What stays of all that a journal tells? The checks, iteration by iteration, and the agent's todo list."""

from msgspec import Struct

from ralph.core import events as e
from ralph.core.text import short

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
        self.worktree = ""
        self.todo: tuple[e.TodoItem, ...] = ()
        self.checks: dict[str, Checked] = {}
        self.bars: list[Bar] = []

    def hear(self, event: e.Event) -> None:
        match event:
            case e.RunStarted():
                self._start(event)
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

    def _start(self, event: e.RunStarted) -> None:
        self.worktree = event.worktree
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
