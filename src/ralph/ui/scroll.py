"""What has the agent said and done of late? Lines that fit the pane, from as many events as a person scrolls back."""

from collections import deque

from ralph.core import events
from ralph.show.amounts import plural
from ralph.show.lines import Lines
from ralph.show.style import Style
from ralph.show.tally import outcome_sentence
from ralph.ui.feed import News

MOST_EVENTS = 4000
MOST_BYTES = 4 << 20
MOST_LINES = 5000


class Scroll:
    """Keeps events, so that their lines can be made anew when the pane gets another width."""

    def __init__(self, style: Style, columns: int) -> None:
        self.style, self.columns = style, columns
        self._kept: deque[News] = deque()
        self._bytes = 0
        self._begin()

    def _begin(self) -> None:
        self._render = Lines(self.style, announces=False, columns=self.columns)
        self.lines: deque[str] = deque(maxlen=MOST_LINES)
        self.begin = 0  # the number of the first line that is still there

    def add(self, news: list[News]) -> None:
        for one in news:
            self._kept.append(one)
            self._bytes += one.size
        while len(self._kept) > MOST_EVENTS or self._bytes > MOST_BYTES:
            self._bytes -= self._kept.popleft().size
        self._write(news)

    def fit(self, columns: int) -> None:
        """Renders everything anew for another width."""
        if columns != self.columns:
            self.columns = columns
            self._begin()
            self._write(list(self._kept))

    def _write(self, news: list[News]) -> None:
        for one in news:
            lines = self._lines_of(one)
            self.begin += max(len(self.lines) + len(lines) - MOST_LINES, 0)
            self.lines.extend(lines)

    def _lines_of(self, news: News) -> list[str]:
        event = news.event
        if isinstance(event, events.TodoUpdated):  # it has a pane of its own
            return []
        lines = self._render(event)
        if isinstance(event, events.RunFinished):
            tone = {0: "good", 2: "alarm"}.get(event.exit_code, "warn")
            sentence = outcome_sentence(event).removeprefix("ralph: ")
            lines = ["", *(self.style.paint(tone, row) for row in self._render.talk.rows(sentence, 0))]
        if news.skipped:
            more = f"{self.style.marks.more} {plural(news.skipped, 'earlier event')}: `ralph logs` has all of them"
            lines.insert(0, self.style.paint("dim", more))
        return lines
