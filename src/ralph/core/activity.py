"""What is done right now, in a few words? The last thing that happened says it, and how long it has been so."""

from typing import Any

from ralph.core import events as e
from ralph.core.text import short

MOST_TOOLS = 100
_THINKING, _NOTHING = object(), object()

_SAYS = {
    *(e.ToolStarted, e.AgentStarted, e.AgentProgress, e.IterationStarted),
    *(e.CheckStarted, e.ReviewStarted, e.Waiting, e.Paused),
}
_THINKS = {e.AgentText, e.ToolFinished}
_ENDS = {e.AgentFinished, e.CheckFinished, e.ReviewFinished, e.Continued}


class Activity:
    """Listens to events, some thousand a second. `since` is the moment (epoch seconds) at which it began."""

    def __init__(self) -> None:
        self.since = 0.0
        self._doing: Any = _NOTHING
        self._tools: dict[str, e.ToolStarted] = {}

    def __call__(self, event: e.Event, now: float) -> None:
        kind = type(event)
        if kind in _THINKS:
            if kind is e.ToolFinished:
                self._tools.pop(event.id, None)  # type: ignore[union-attr]
            doing = next(reversed(self._tools.values())) if self._tools else _THINKING
        elif kind in _SAYS:
            if kind is e.ToolStarted and len(self._tools) < MOST_TOOLS:
                self._tools[event.id] = event  # type: ignore[union-attr,assignment]
            elif kind is e.AgentStarted:
                self._tools.clear()
            doing = event
        elif kind is e.Unheard:
            for call in event.ended:  # type: ignore[union-attr]
                self._tools.pop(call, None)
            doing = next(reversed(self._tools.values())) if self._tools else _THINKING
        elif kind in _ENDS:
            self._tools.clear()
            doing = _NOTHING
        else:
            return
        if doing is not self._doing:
            self._doing, self.since = doing, now

    @property
    def text(self) -> str:
        match self._doing:
            case e.ToolStarted() as tool:
                given = short(tool.input, 200)
                return short(tool.name, 80) + (f"({given})" if given else "")
            case e.AgentStarted() as turn:
                return short(turn.agent, 40) + (": commit message" if turn.purpose == "message" else "")
            case e.IterationStarted():
                return "preparing"
            case e.AgentProgress() as progress:
                return short(progress.text, 200)
            case e.CheckStarted() as check:
                return f"check {short(check.name, 200)}"
            case e.ReviewStarted() as review:
                return f"review {short(review.name, 200)}"
            case e.Waiting() as wait:
                return f"waiting: {short(wait.reason, 200)}"
            case e.Paused() as pause:
                return f"paused: {short(pause.reason, 200)}"
        return "thinking" if self._doing is _THINKING else ""
