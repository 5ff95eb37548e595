"""How much can a person read? What an agent pours out beyond that is counted, not shown: all of it is in the log."""

from ralph.core.events import TALK, Event, Unheard

MOST = 10_000  # lines a second
_ROW = 100  # characters: a line that is longer takes several rows of a screen


class Flow:
    """Lets so many lines of talk through, and as many more each second. `left_out` counts what came beyond that."""

    def __init__(self, most: float = MOST) -> None:
        self.left_out = 0
        self._most = self._room = most
        self._at = 0.0

    def pass_time(self, now: float) -> None:
        if now - self._at >= 1 or now < self._at:
            self._room, self._at = self._most, now

    def is_full(self, now: float) -> bool:
        """Whether no more talk gets through at the moment."""
        return self._room <= 0 and 0 <= now - self._at < 1

    def takes(self, event: Event) -> bool:
        if isinstance(event, Unheard):
            self.left_out += event.number
            return False
        is_taken = self._room > 0 or type(event) not in TALK
        self.left_out += not is_taken
        return is_taken

    def carry(self, lines: list[str]) -> None:
        self._room -= len(lines) + sum(map(len, lines)) // _ROW
