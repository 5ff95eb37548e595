"""What do people see of a work? A line for whatever happens to an item or at the gate and, on a terminal, a table that
says where each of them stands."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from msgspec import Struct

from ralph.core import events, work_events
from ralph.core.backlog import SHOWN, Board, Forecast, Job, forecast, shown
from ralph.core.model import RunFacts
from ralph.core.text import one_line, short
from ralph.show.outlet import Outlet, Style, choose, is_smart
from ralph.show.words import cut, money, plural

MOST_ROWS = 20
TONES = {"landed": "green", "working": "cyan", "ready": "cyan", "parked": "warn", "blocked": "yellow", "held": "yellow"}
_UP = "\x1b[{}A"
_ERASE = "\r\x1b[J"


class Row(Struct, frozen=True):
    """One item, as a table shows it."""

    key: str
    state: str
    title: str
    job: Job
    facts: RunFacts | None = None


def rows(board: Board, facts: Mapping[str, RunFacts | None]) -> list[Row]:
    """Every item; what needs a person first, what is over last."""
    states = shown(board)
    made = [Row(key, states[key], job.item.title, job, facts.get(key)) for key, job in board.jobs.items()]
    return sorted(made, key=lambda row: SHOWN.index(row.state))


def table(
    board: Board, made: Sequence[Row], style: Style, columns: int, now: float, *, most: int = MOST_ROWS
) -> list[str]:
    """The table, with a last line that counts what it leaves out."""
    wide = max((len(row.key) for row in made), default=1)
    lines = [_line(row, wide, style, columns, now) for row in made[:most]]
    left_out = made[most:]
    if left_out:
        counts = {state: sum(row.state == state for row in left_out) for state in SHOWN}
        lines.append(style.paint("dim", f"  … {counted(counts)}"))
    return [*lines, style.paint("dim", cut(" " + totals(board, now), columns))]


def counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in counts.items() if number)


def totals(board: Board, now: float) -> str:
    """What is done, what it cost, and what is to come."""
    states = [*shown(board).values()]
    counts = {state: states.count(state) for state in reversed(SHOWN)}
    parts = [counted(counts) or "nothing yet"]
    if board.costs:
        parts.append(money(board.spent))
    if rest := forecast(board):
        parts.append(forecasted(rest))
    if board.stuck:
        parts.append(f"the gate stands still: {board.stuck}")
    if board.is_held:
        parts.append("paused")
    return " · ".join(parts)


def forecasted(rest: Forecast) -> str:
    """`≈ $14 more (10–22)`."""
    digits = 0 if rest.more >= 10 else 2
    return f"≈ ${rest.more:.{digits}f} more ({rest.low:.{digits}f}–{rest.high:.{digits}f})"


def _line(row: Row, wide: int, style: Style, columns: int, now: float) -> str:
    who = f"on {row.job.worker}" if row.job.worker and row.state == "working" else ""
    facts = [part for part in (who, _progress(row), _doing(row, now)) if part]
    text = f"{row.key:<{wide}}  {row.state:<9}  "
    title = one_line(row.job.item.about, 60)
    about = " · ".join([*facts, title] if row.state != "landed" else [title])
    room = max(columns - len(text) - 1, 10)
    return " " + style.paint(TONES.get(row.state, "plain"), text) + style.paint("dim", cut(about, room))


def _progress(row: Row) -> str:
    seen = row.facts
    if seen is None or row.state != "working":
        return money(row.job.cost_usd) if row.job.cost_usd else ""
    parts = [f"iteration {seen.iterations + 1}"]
    if seen.checks:
        parts.append(f"checks {seen.passed}/{seen.checks}")
    if seen.cost_usd is not None:
        parts.append(money(seen.cost_usd))
    return " ".join(parts)


def _doing(row: Row, now: float) -> str:
    if row.state == "working" and row.facts and row.facts.doing:
        return short(row.facts.doing, 40)
    return short(_reason(row), 80)


def _reason(row: Row) -> str:
    """Why it stands where it stands."""
    awaited = row.job.item.after if row.state in ("waiting", "blocked") else ()
    return f"after {', '.join(awaited)}" if awaited else row.job.reason


def sentence(event: object) -> tuple[str, str]:
    """What an event means in one line, and in which tone; nothing where it is not worth one."""
    match event:
        case work_events.WorkStarted():
            checks = f"{plural(len(event.checks), 'check')} on every candidate"
            again = "goes on" if event.resumed else f"{plural(event.slots, 'loop')} at a time"
            return f"work {event.name}: {event.backlog} → {event.target} ({again}, {checks})", "title"
        case work_events.ItemStarted():
            facts = [f"round {event.round}"] if event.round > 1 else []
            facts += [f"on {event.worker}"] if event.worker else []
            return f"{event.key}: a loop starts" + (f" ({', '.join(facts)})" if facts else ""), "plain"
        case work_events.ItemReady():
            cost = f", {money(event.cost_usd)}" if event.cost_usd is not None else ""
            return f"{event.key}: done and verified ({plural(len(event.files), 'file')}{cost})", "plain"
        case work_events.GateStarted():
            return f"gate: checks {_few(event.keys)}", "dim"
        case work_events.ItemLanded():
            return f"{event.key}: landed as {event.commit[:12]}", "green"
        case work_events.ItemReturned():
            return f"{event.key}: sent back: {short(event.reason, 200)}", "yellow"
        case work_events.ItemParked():
            return f"{event.key}: parked: {short(event.reason, 300)}", "warn"
        case work_events.ItemWithdrawn():
            return f"{event.key}: withdrawn: {short(event.reason, 200)}", "yellow"
        case work_events.ItemQueued():
            return f"{event.key}: queued again: {short(event.reason, 200)}", "plain"
        case work_events.ItemWarned():
            return f"{event.key}: its agent is told that {_few(event.files)} has changed meanwhile", "dim"
        case work_events.GateFinished() if event.verdict.red and len(event.verdict.tried) > 1:
            red = event.verdict.red
            return f"gate: {short(red.check, 100)} is red on {_few(event.verdict.tried)}: halved", "yellow"
        case work_events.GateFinished() if event.verdict.stuck:
            return f"gate: stands still: {short(event.verdict.stuck, 300)}", "warn"
        case work_events.GateOpened():
            return f"gate: the target is green at {event.commit[:12]}", "dim"
        case work_events.WorkHeld():
            return "paused" if event.is_held else "goes on", "yellow"
        case events.Notice():
            return short(event.text, 500), "yellow"
    return "", ""


def last_line(event: work_events.WorkFinished, target: str, is_remote: bool) -> str:
    """`ralph: 17 of 20 landed on ralph/k3fa/merged, 2 parked, 1 blocked ($23.10): git merge ralph/k3fa/merged`."""
    parts = [f"{event.landed} of {event.items} landed on {target}"]
    parts += [f"{event.parked} parked"] if event.parked else []
    parts += [f"{event.blocked} blocked"] if event.blocked else []
    cost = f" ({money(event.cost_usd)})" if event.cost_usd is not None else ""
    why = {"budget": "the budget is spent", "interrupted": "stopped by you; go on with `ralph resume`"}
    reason = why.get(event.outcome) or (event.reason if event.outcome in ("fatal", "stuck", "timeout") else "")
    text = f"ralph: {', '.join(parts)}{cost}" + (f"; {reason}" if reason else "")
    return f"{text}: git merge {target}" if event.landed and not is_remote else text


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


class WorkScreen:
    """A listener that shows. The table is drawn below the lines, and anew after each of them."""

    def __init__(
        self, stream: TextIO | None, *, quiet: bool, color: bool | None, emoji: bool | None, env: Mapping[str, str]
    ) -> None:
        is_terminal = stream is not None and stream.isatty()
        self._style = choose(stream, env, is_terminal, color, emoji)
        self._outlet = Outlet(stream)
        self._stream, self._quiet = stream, quiet
        self._live = is_terminal and is_smart(env) and not quiet
        self._drawn = 0
        self._target, self._is_remote = "", False
        self.look: Callable[[], list[Row]] = list
        self.board: Callable[[], Board] = Board

    def __call__(self, *happened: object) -> None:
        lines = []
        for event in happened:
            if isinstance(event, work_events.WorkStarted):
                self._target, self._is_remote = event.target, bool(event.push)
            text, tone = sentence(event)
            if text and not self._quiet:
                lines.append(self._style.paint(tone, text))
            if isinstance(event, work_events.WorkFinished):
                self._live = False
                tone = {0: "good", 2: "alarm"}.get(event.exit_code, "warn")
                lines += [*self._summary(event), self._style.paint(tone, self._ending(event))]
        if lines:
            self._write(lines)

    def _ending(self, event: work_events.WorkFinished) -> str:
        return last_line(event, self._target, self._is_remote)

    def _summary(self, event: work_events.WorkFinished) -> list[str]:
        """What needs a person, before the last line."""
        if self._quiet:
            return []
        board = self.board()
        parked = [row for row in rows(board, {}) if row.state in ("parked", "blocked")]
        said = (f"{row.key}: {row.state}: {short(_reason(row) or row.title, 200)}" for row in parked[:50])
        return [self._style.paint("warn", text) for text in said]

    def tick(self) -> None:
        if self._live and not self._outlet.gone:
            self._write([])

    def announce(self, text: str) -> None:
        """Says at once that the work is to end. A signal handler may call this in mid-write."""
        self._outlet.write(f"{text}\n")
        self._drawn = 0

    def close(self) -> None:
        self._live = False
        self._write([])
        self._outlet.close()

    def _columns(self) -> tuple[int, int]:
        try:
            size = os.get_terminal_size(self._stream.fileno() if self._stream else -1)
        except (OSError, ValueError):
            return 80, 24
        return size.columns or 80, size.lines or 24

    def _write(self, lines: list[str]) -> None:
        """In one write: the table goes, the lines come, the table is back."""
        text = (_UP.format(self._drawn - 1) if self._drawn > 1 else "") + _ERASE if self._drawn else ""
        text += "".join(f"{line}\n" for line in lines)
        self._drawn = 0
        if self._live:
            columns, height = self._columns()
            shown = table(self.board(), self.look(), self._style, columns - 1, time.time(), most=max(height - 5, 3))
            made = ["", *shown]
            text += "\x1b[?7l" + "\n".join(made) + "\x1b[?7h"
            self._drawn = len(made)
        if text:
            self._outlet.write(text)
