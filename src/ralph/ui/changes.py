"""What did an iteration change, as lines of a patch that can be shown?"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from ralph.cli.diff import whole
from ralph.core.secrets import redact_text
from ralph.core.text import clean
from ralph.errors import UserError
from ralph.ui.draw import nickname
from ralph.ui.look import Look
from ralph.world.repository.checkpoint import Checkpoints
from ralph.world.repository.diff import changed_files, patch
from ralph.world.repository.git import repository

MOST_LINES = 20_000
LONGEST_LINE = 500
TONES = {"+": "green", "-": "red", "@": "cyan"}
HEADS = ("diff ", "index ", "--- ", "+++ ", "new file", "deleted file", "similarity", "rename ", "old mode", "new mode")


class Changes(Struct, frozen=True):
    """`number` is the iteration, None for the whole run; `last` is the last one that can be looked at."""

    number: int | None
    last: int
    title: str
    lines: list[str]


def changes(run: str, place: str, number: int | None, look: Look) -> Changes:
    """The patch of an iteration of a run that worked in `place`, or of all of them."""
    if not Path(place).is_dir():
        raise UserError(f"{place} is gone", "the run's work cannot be looked at")
    repo = repository(Path(place))
    saved = Checkpoints(repo, run)
    numbers = [int(one.name) for one in saved.all() if one.name.isdigit()]
    last = max(numbers, default=0)
    if not last:
        raise UserError(f"{nickname(run)} has not finished an iteration yet", "what it changes is kept after each")
    before, after = saved.around(min(number, last)) if number else whole(saved)
    files = changed_files(repo, before, after)
    added, deleted = (sum(getattr(file, way) or 0 for file in files) for way in ("added", "deleted"))
    what = f"iteration {min(number, last)}" if number else f"iterations 1 to {last}"
    title = f"{nickname(run)} · {what} · {len(files)} file{'s' if len(files) != 1 else ''} · +{added} -{deleted}"
    lines = list(_painted(patch(repo, before, after), look))
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [look.paint("dim", f"… more: ralph diff {run} {number or ''}")]
    return Changes(number and min(number, last), last, title, lines or [look.paint("dim", "nothing was changed")])


def _painted(chunks: Iterable[bytes], look: Look) -> Iterator[str]:
    for count, raw in enumerate(_lines(chunks)):
        if count > MOST_LINES:
            return
        line = redact_text(clean(raw.decode("utf-8", "replace"))).expandtabs(4)[:LONGEST_LINE]
        if line.startswith("diff "):
            yield ""
            yield look.paint("title", line.rpartition(" b/")[2])
        elif not line.startswith(HEADS):
            tone = TONES.get(line[:1])
            yield look.paint(tone, line) if tone else line


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest
