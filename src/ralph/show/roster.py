"""What do all runs do right now? A row of facts for each, and below it what it does, wants or came to."""

from collections.abc import Sequence

from msgspec import Struct

from ralph.core.text import clean, one_line
from ralph.show.outlet import Style
from ralph.show.words import cut, duration, moment, money, width

TITLES = ("RUN", "STATE", "ITERATION", "CHECKS", "COST", "AGE", "WORKSPACE")
_GAP = "  "
_TONES = {
    "running": "green",
    "stopping": "yellow",
    "waiting": "yellow",
    "paused": "yellow",
    "asking": "warn",
    "killed": "red",
    "done": "dim",
}


class Sight(Struct, frozen=True):
    """One run at one moment, also as `ralph ps --json` prints it. `iteration` is the one at work, or the last one;
    `doing` since the moment `since`; `questions` are those that wait for `ralph tell`."""

    run: str
    state: str
    alive: bool
    iteration: int
    max_iterations: int | None
    checks: int
    checks_passed: int
    cost_usd: float | None
    tokens: int
    age_s: float
    doing: str
    since: float
    questions: tuple[str, ...]
    notes: int
    pausing: bool
    waiting_until: float
    outcome: str
    reason: str
    workspace: str
    goal: str
    agent: str
    preset: str
    branch: str
    pid: int


def roster(sights: Sequence[Sight], style: Style, columns: int, now: float, home: str = "") -> list[str]:
    """The lines of `ralph ps`, at most `columns` wide (0: as long as they are)."""
    rows = [TITLES, *(_facts(sight, home) for sight in sights)]
    sizes = [max(width(row[at]) for row in rows) for at in range(len(TITLES) - 1)]
    lines = [style.paint("dim", _line(TITLES, sizes, columns))]
    indent = " " * (sizes[0] + len(_GAP))
    for sight, row in zip(sights, rows[1:], strict=True):
        line = _line(row, sizes, columns)
        place = sizes[0] + len(_GAP)
        state = line[place : place + len(sight.state)]
        lines.append(line[:place] + style.paint(_TONES.get(state, "plain"), state) + line[place + len(state) :])
        lines += [style.paint("dim", _cut(indent + text, columns)) for text in _remarks(sight, now)]
    return lines


def _facts(sight: Sight, home: str) -> tuple[str, ...]:
    of = f"/{sight.max_iterations}" if sight.max_iterations is not None else ""
    place = one_line(clean(sight.workspace), 500)
    if home and (place == home or place.startswith(home + "/")):
        place = "~" + place[len(home) :]
    return (
        sight.run,
        sight.state,
        f"{sight.iteration}{of}",
        f"{sight.checks_passed}/{sight.checks}" if sight.checks else "-",
        "-" if sight.cost_usd is None else money(sight.cost_usd),
        duration(round(sight.age_s)),
        place,
    )


def _remarks(sight: Sight, now: float) -> list[str]:
    """What it does, what it asks, and what lies in its mailbox."""
    said = []
    if not sight.alive:
        said.append(sight.reason or ("go on with `ralph resume`" if sight.state == "killed" else ""))
    elif sight.waiting_until:
        left = sight.waiting_until - now
        said.append(f"{sight.reason} until {moment(sight.waiting_until, left)}" if left > 0 else sight.reason)
    elif sight.state == "paused":
        said.append(f"for {duration(round(now - sight.since))}; go on with `ralph resume`")
    elif sight.doing and sight.state != "asking":
        took = now - sight.since
        said.append(sight.doing + (f" {duration(round(took))}" if took >= 1 else ""))
    if sight.alive:
        said += [f"asks: {question}" for question in sight.questions]
        said += ["pauses after this turn"] if sight.pausing and sight.state not in ("paused", "stopping") else []
        said += [f"{sight.notes} note{'s' if sight.notes > 1 else ''} for the next prompt"] if sight.notes else []
    return [one_line(clean(text), 300) for text in said if text]


def _line(cells: Sequence[str], sizes: list[int], columns: int) -> str:
    padded = [cell + " " * (size - width(cell)) for cell, size in zip(cells, sizes, strict=False)]
    return _cut(_GAP.join([*padded, cells[-1]]).rstrip(), columns)


def _cut(line: str, columns: int) -> str:
    return cut(line, columns) if columns else line
