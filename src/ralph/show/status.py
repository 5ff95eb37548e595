"""What is going on right now? The one line at the bottom of a live terminal."""

from ralph.core import events as e
from ralph.core.activity import Activity
from ralph.show.amounts import duration, moment, money
from ralph.show.cells import cut
from ralph.show.style import Style

_WORTH_SAYING = 3
"""From how many seconds on it is said how long one thing has taken."""


class Status:
    """Listens to events, and says on one line where the run stands."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self.is_ending = False
        """Whether the run was asked to end, and finishes what it does."""
        self._began: float | None = None
        self._iteration = ""
        self._cost: float | None = None
        self._pending: e.AgentResult | None = None
        self._activity = Activity()
        self._until, self._wait = 0.0, 0.0

    def __call__(self, event: e.Event, now: float) -> None:
        self._began = now if self._began is None else self._began
        before = self._activity.since
        self._activity(event, now)
        if self._activity.since != before:
            self._until = 0.0
        if type(event) in e.TALK:  # most of them
            return
        match event:
            case e.IterationStarted():
                of = f"/{event.max_iterations}" if event.max_iterations is not None else ""
                self._iteration = f"iteration {event.iteration}{of}"
            case e.AgentStarted():
                self._pending = None
            case e.AgentResult():
                self._pending = event
            case e.AgentFinished():
                self._spend()
            case e.Waiting():
                self._until, self._wait = event.until or now + event.seconds, event.seconds

    def line(self, now: float, columns: int) -> str:
        """At most `columns` wide, painted."""
        parts = [self._iteration or "ralph", duration(max(round(now - (self._began or now)), 0))]
        if self._cost is not None:
            parts.append(money(self._cost))
        if self.is_ending:
            parts.append("Ctrl-C again ends it now")
        if self._until:
            left = max(self._until - now, 0.0)
            parts.append(f"waiting {duration(round(left))} until {moment(self._until, self._wait)}")
        elif doing := self._activity.text:
            took = now - self._activity.since
            parts.append(doing + (f" {duration(round(took))}" if took >= _WORTH_SAYING else ""))
        line = cut(f" {self.style.marks.dot} ".join(parts), columns, self.style.marks.more)
        place = len(parts[0])
        return self.style.paint("cyan", line[:place]) + self.style.paint("dim", line[place:])

    def _spend(self) -> None:
        if self._pending and self._pending.cost_usd is not None:
            self._cost = (self._cost or 0.0) + self._pending.cost_usd
        self._pending = None
