"""What do we see of the run that is looked at? What its journal says so far, as facts and as lines."""

from ralph.show.style import Style
from ralph.ui.facts import Facts
from ralph.ui.feed import Feed
from ralph.ui.scroll import Scroll
from ralph.world.records.register import Listed


class Watching:
    def __init__(self, run: Listed, style: Style, columns: int) -> None:
        self.run = run.id
        self._journal = run.folder.journal
        self._begin(style, columns)

    def _begin(self, style: Style, columns: int) -> None:
        self.facts = Facts()
        self.scroll = Scroll(style, columns)
        self._feed = Feed(self._journal)

    @property
    def is_behind(self) -> bool:
        return self._feed.is_behind

    def look(self) -> bool:
        """Reads on; whether there was anything new."""
        if self._feed.is_replaced:
            self.close()
            self._begin(self.scroll.style, self.scroll.columns)
        news = self._feed.look()
        for one in news:
            self.facts.hear(one.event)
        self.scroll.add(news)
        return bool(news)

    def close(self) -> None:
        self._feed.close()
