"""What did an iteration read, write, say and change? Files of a run's own folder: without following links, regular ones
only, bounded, and without what looks like a key."""

import os
from collections.abc import Sequence
from contextlib import closing

from ralph.core.secrets import redact_text
from ralph.core.text import clean
from ralph.errors import UserError
from ralph.files import open_file
from ralph.history.feed import entries_of
from ralph.records.register import Listed
from ralph.show.plots import Html
from ralph.web.entries import MOST_ENTRIES, RecentPieces

MOST_BYTES = 1 << 20
FILES = {"prompt": "prompt.md", "log": "stdout.log"}


def text_of(run: Listed, number: int, what: str) -> tuple[str, str]:
    """The prompt or the log of an iteration, and a note where only its end is shown."""
    path = f"{run.place}/iterations/{number:03d}/{FILES[what]}"
    data, size = _tail(path)
    text = redact_text(clean(data.decode("utf-8", "replace")))
    return text, f"The last {len(data) >> 10} of {size >> 10} KB." if size > len(data) else ""


def _tail(path: str) -> tuple[bytes, int]:
    """The end of a file, cut at a line, and the size of all of it."""
    try:
        file = open(open_file(path), "rb")  # noqa: SIM115
    except OSError:
        raise UserError("it was not kept, or has been removed") from None
    with closing(file):
        about = os.fstat(file.fileno())
        file.seek(max(about.st_size - MOST_BYTES, 0))
        data = file.read(MOST_BYTES)
    return (data if about.st_size <= MOST_BYTES else data.partition(b"\n")[2]), about.st_size


def iteration(run: Listed, number: int) -> tuple[Sequence[Html], bool]:
    """All that happened in an iteration, as pieces of a page, and whether its beginning was left out."""
    stream = RecentPieces(run.facts.workspace)
    for news in entries_of(run.folder.journal, number):
        stream.hear(news.entry, news.event)
    return stream.shown(MOST_ENTRIES), stream.begin > 0
