"""What is going on right now? The one line at the bottom of a live terminal."""

from ralph.core import events as e
from ralph.show.amounts import duration, moment, money
from ralph.show.cells import cut
from ralph.show.style import Style
from ralph.show.talk import short

_WORTH_SAYING = 3
"""From how many seconds on it is said how long one thing has taken."""


class Status:
    """Listens to events, and says on one line where the run stands."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self._began: float | None = None
        self._iteration = ""
        self._cost: float | None = None
        self._pending: e.AgentResult | None = None
        self._tools: dict[str, str] = {}
        self._activity, self._since = "", 0.0
        self._until, self._wait = 0.0, 0.0

    def __call__(self, event: e.Event, now: float) -> None:
        self._began = now if self._began is None else self._began
        match event:
            case e.ToolStarted():
                if len(self._tools) < 100:
                    given = short(event.input, 200)
                    self._tools[event.id] = short(event.name, 80) + (f"({given})" if given else "")
                self._now(now, next(reversed(self._tools.values())))
            case e.ToolFinished():
                self._tools.pop(event.id, None)
                self._now(now, next(reversed(self._tools.values()), "thinking"))
            case e.IterationStarted():
                of = f"/{event.max_iterations}" if event.max_iterations is not None else ""
                self._iteration = f"iteration {event.iteration}{of}"
                self._now(now, "preparing")
            case e.AgentStarted():
                self._tools.clear()
                self._pending = None
                self._now(now, short(event.agent, 40) + (": commit message" if event.purpose == "message" else ""))
            case e.AgentText() if not self._tools:
                self._now(now, "thinking")
            case e.AgentProgress() if not self._tools:
                self._now(now, short(event.text, 200))
            case e.AgentResult():
                self._pending = event
            case e.AgentFinished():
                self._tools.clear()
                self._spend()
                self._now(now, "")
            case e.CheckStarted():
                self._now(now, f"check {short(event.name, 200)}")
            case e.CheckFinished() | e.ReviewFinished():
                self._now(now, "")
            case e.ReviewStarted():
                self._now(now, f"review {short(event.name, 200)}")
            case e.Paused():
                self._now(now, f"paused: {short(event.reason, 200)}")
            case e.Continued():
                self._now(now, "")
            case e.Waiting():
                self._now(now, f"waiting: {short(event.reason, 200)}")
                self._until, self._wait = event.until or now + event.seconds, event.seconds
            case _:
                pass

    @property
    def activity(self) -> tuple[str, float]:
        """What is done right now, and since when."""
        return self._activity, self._since

    def line(self, now: float, columns: int) -> str:
        """At most `columns` wide, painted."""
        parts = [self._iteration or "ralph", duration(max(round(now - (self._began or now)), 0))]
        if self._cost is not None:
            parts.append(money(self._cost))
        if self._until:
            left = max(self._until - now, 0.0)
            parts.append(f"waiting {duration(round(left))} until {moment(self._until, self._wait)}")
        elif self._activity:
            took = now - self._since
            parts.append(self._activity + (f" {duration(round(took))}" if took >= _WORTH_SAYING else ""))
        line = cut(f" {self.style.marks.dot} ".join(parts), columns, self.style.marks.more)
        place = len(parts[0])
        return self.style.paint("cyan", line[:place]) + self.style.paint("dim", line[place:])

    def _now(self, now: float, activity: str) -> None:
        if activity != self._activity or self._until:
            self._activity, self._since, self._until = activity, now, 0.0

    def _spend(self) -> None:
        if self._pending and self._pending.cost_usd is not None:
            self._cost = (self._cost or 0.0) + self._pending.cost_usd
        self._pending = None
