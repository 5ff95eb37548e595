"""What did an iteration read, write, say and change? Files of a run's own folder: without following links, regular ones
only, bounded, and without what looks like a key."""

from collections.abc import Sequence

from ralph.core.secrets import redact_text
from ralph.core.text import clean
from ralph.errors import UserError
from ralph.history.feed import entries_of
from ralph.records.archive import Logs
from ralph.records.register import Listed
from ralph.show.plots import Html
from ralph.web.entries import MOST_ENTRIES, RecentPieces

MOST_BYTES = 1 << 20
FILES = {"prompt": "prompt.md", "log": "stdout.log"}


def text_of(run: Listed, number: int, what: str) -> tuple[str, str]:
    """The prompt or the log of an iteration, and a note where only its end is shown."""
    try:
        log = Logs(run.folder.path).read(number, FILES[what], MOST_BYTES, tail=True)
    except OSError:
        raise UserError("it was not kept, or has been removed") from None
    data = log.data if len(log.data) == log.size else log.data.partition(b"\n")[2]  # cut at a line
    text = redact_text(clean(data.decode("utf-8", "replace")))
    return text, f"The last {len(data) >> 10} of {log.size >> 10} KB." if log.size > len(data) else ""


def iteration(run: Listed, number: int) -> tuple[Sequence[Html], bool]:
    """All that happened in an iteration, as pieces of a page, and whether its beginning was left out."""
    stream = RecentPieces(run.facts.workspace)
    for news in entries_of(run.folder.journal, number):
        stream.hear(news.entry, news.event)
    return stream.shown(MOST_ENTRIES), stream.begin > 0
