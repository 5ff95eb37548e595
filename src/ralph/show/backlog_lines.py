"""A backlog in a terminal: a line per event, a live table of its tasks, and the last line."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import Protocol, TextIO

from msgspec import Struct

from ralph.core import backlog_events, events
from ralph.core.backlog import STATE_ORDER, Board, FailedCheck, Job, displayed_states, forecast
from ralph.core.state import RunSummary
from ralph.core.text import listed, one_line, plural, short
from ralph.history.states import COLORS, TASK_TONES
from ralph.process.signals import Deadline
from ralph.show.outlet import LiveRows, Outlet, Style, can_move_cursor, choose, outcome_tone, terminal_size
from ralph.show.words import cut, money
from ralph.store.folder import RunFolder

MAX_ROWS = 20
MAX_KEY = 60  # characters


class Row(Struct, frozen=True):
    """One task in the table."""

    key: str
    state: str
    job: Job
    facts: RunSummary | None = None


def rows(board: Board, facts: Mapping[str, RunSummary | None]) -> list[Row]:
    """Return every task: those that need a person first, finished ones last."""
    states = displayed_states(board)
    job_rows = [Row(key, states[key], job, facts.get(key)) for key, job in board.jobs.items()]
    return sorted(job_rows, key=lambda row: STATE_ORDER.index(row.state))


def table(board: Board, job_rows: Sequence[Row], style: Style, columns: int, *, most: int = MAX_ROWS) -> list[str]:
    """Return the lines of the table. The last lines count the tasks that are left out, and sum up."""
    wide = max((len(short(row.key, MAX_KEY)) for row in job_rows), default=1)
    lines = [_line(row, wide, style, columns) for row in job_rows[:most]]
    left_out = job_rows[most:]
    if left_out:
        lines.append(style.paint("dim", f"  … {count_states([row.state for row in left_out])}"))
    return [*lines, style.paint("dim", cut(" " + totals(board), columns))]


def count_states(states: Sequence[str], order: Sequence[str] = STATE_ORDER) -> str:
    """Return `2 parked, 1 working`."""
    return ", ".join(f"{states.count(state)} {state}" for state in order if state in states)


def totals(board: Board) -> str:
    """Return the number of tasks in each state, the cost, and the forecast."""
    states = [*displayed_states(board).values()]
    parts = [count_states(states, STATE_ORDER[::-1]) or "nothing yet"]
    if board.costs:
        parts.append(money(board.spent))
    if (rest := forecast(board)) and rest.high >= 0.01:
        digits = 0 if rest.more >= 10 else 2
        parts.append(f"≈ ${rest.more:.{digits}f} more ({rest.low:.{digits}f}–{rest.high:.{digits}f})")
    if board.stuck:
        parts.append(f"merging is blocked: {short(board.stuck, 300)}")
    if board.is_paused:
        parts.append("paused")
    return " · ".join(parts)


def _line(row: Row, wide: int, style: Style, columns: int) -> str:
    who = f"on {short(row.job.worker, 60)}" if row.job.worker and row.state == "working" else ""
    doing = row.facts.doing if row.facts and row.state == "working" else ""
    doing = short(doing, 40) if doing else short(_reason(row), 80)
    facts = [part for part in (who, _progress(row), doing) if part]
    text = f"{short(row.key, MAX_KEY):<{wide}}  {row.state:<9}  "
    title = one_line(row.job.task.about, 60)
    about = " · ".join([*facts, title] if row.state != "merged" else [title])
    room = max(columns - len(text) - 1, 10)
    return " " + style.paint(COLORS[TASK_TONES[row.state]], text) + style.paint("dim", cut(about, room))


def _progress(row: Row) -> str:
    loop = row.facts
    if loop is None or row.state != "working":
        return money(row.job.cost_usd) if row.job.cost_usd else ""
    parts = [f"iteration {loop.finished + 1}"]
    if loop.checks:
        parts.append(f"checks {loop.checks_passed}/{loop.checks}")
    if loop.cost_usd is not None:
        parts.append(money(loop.cost_usd))
    return " ".join(parts)


def _reason(row: Row) -> str:
    """Return why the task is in its state."""
    awaited = row.job.task.after if row.state in ("waiting", "blocked") else ()
    return f"after {listed(awaited)}" if awaited else row.job.reason


def sentence(event: object) -> tuple[str, str]:
    """Return an event as one line and its tone; empty if it is not worth a line."""
    text, tone = _sentence(event)
    return one_line(text, 1000), tone


def _sentence(event: object) -> tuple[str, str]:
    """Return the text and its tone. The text is not safe to display: an agent may have written to the journal."""
    match event:
        case backlog_events.BacklogStarted():
            checks = f"{plural(len(event.checks), 'check')} before every merge"
            again = "resumed" if event.resumed else f"{plural(event.slots, 'task')} at a time"
            return f"work {event.name}: {event.backlog} → {event.target} ({again}, {checks})", "title"
        case backlog_events.TaskStarted():
            facts = [f"attempt {event.attempt}"] if event.attempt > 1 else []
            facts += [f"on {event.worker}"] if event.worker else []
            return f"{event.key}: started" + (f" ({', '.join(facts)})" if facts else ""), "plain"
        case backlog_events.TaskReady():
            cost = f", {money(event.cost_usd)}" if event.cost_usd is not None else ""
            return f"{event.key}: done and verified ({plural(len(event.files), 'file')}{cost})", "plain"
        case backlog_events.GateStarted():
            return f"gate: checks {listed(event.keys, 5) or 'the target'}", "dim"
        case backlog_events.TaskMerged():
            return f"{event.key}: merged as {event.commit[:12]}", "green"
        case backlog_events.TaskReturned():
            return f"{event.key}: sent back: {short(event.reason, 200)}", "yellow"
        case backlog_events.TaskParked():
            return f"{event.key}: parked: {short(event.reason, 300)}", "warn"
        case backlog_events.TaskWithdrawn():
            return f"{event.key}: withdrawn: {short(event.reason, 200)}", "yellow"
        case backlog_events.TaskQueued():
            return f"{event.key}: queued again: {short(event.reason, 200)}", "plain"
        case backlog_events.GateFinished() if event.verdict.red and len(event.verdict.tried) > 1:
            red = event.verdict.red
            tried = listed(event.verdict.tried, 5)
            return f"gate: {short(red.check, 100)} is red on {tried}: trying each half", "yellow"
        case backlog_events.GateFinished() if event.verdict.stuck:
            return f"gate: merging is blocked: {short(event.verdict.stuck, 300)}", "warn"
        case backlog_events.GateOpened() if event.red:
            failing = listed([_count_failures(check) for check in event.red])
            return f"gate: the target is red at {event.commit[:12]}: {failing}", "yellow"
        case backlog_events.GateOpened():
            return f"gate: the target is green at {event.commit[:12]}", "dim"
        case backlog_events.BacklogPaused():
            return "paused" if event.is_paused else "resumed", "yellow"
        case events.Notice():
            return short(event.text, 500), "yellow"
    return "", ""


def _count_failures(check: FailedCheck) -> str:
    count = plural(check.count.failures, "failure") if check.count else "a task has to fix it: no count of its failures"
    return f"{short(check.check, 100)} ({count})"


def backlog_sentence(event: backlog_events.BacklogFinished, target: str) -> str:
    """Return `17 of 20 merged into ralph/k3fa/merged, 2 parked, 1 blocked ($23.10)`."""
    parts = [f"{event.merged} of {event.tasks} merged into {target}"]
    parts += [f"{event.parked} parked"] if event.parked else []
    parts += [f"{event.blocked} blocked"] if event.blocked else []
    cost = f" ({money(event.cost_usd)})" if event.cost_usd is not None else ""
    why = {"budget": "the budget is spent", "interrupted": f"{event.reason}; resume it with `ralph resume`"}
    reason = why.get(event.outcome) or (
        event.reason if event.outcome in ("fatal", "stuck", "timeout", "blocked") else ""
    )
    return one_line(f"{', '.join(parts)}{cost}" + (f"; {reason}" if reason else ""), 1000)


def last_line(event: backlog_events.BacklogFinished, target: str, name: str) -> str:
    """Return `backlog_sentence` with the command that accepts the work, or shows why an exam refused it.

    `name` is empty if there is nothing to accept here.
    """
    verb = "show" if event.outcome == "blocked" else "accept"
    return backlog_sentence(event, target) + (f": ralph {verb} {name}" if event.merged and name else "")


class FollowedBacklog(Protocol):
    """What the screen and the notifications read of a backlog run."""

    @property
    def workspace(self) -> str: ...
    @property
    def folder(self) -> RunFolder: ...
    @property
    def deadline(self) -> Deadline | None: ...
    @property
    def notify(self) -> Sequence[str]: ...
    @property
    def board(self) -> Board: ...
    @property
    def summaries(self) -> Mapping[str, RunSummary | None]: ...


class BacklogScreen:
    """Shows events as lines and, on a terminal, the table below them."""

    def __init__(
        self, stream: TextIO | None, *, quiet: bool, color: bool = True, emoji: bool = True, env: Mapping[str, str]
    ) -> None:
        is_terminal = stream is not None and stream.isatty()
        self._style = choose(stream, env, is_terminal, None if color else False, None if emoji else False)
        self._outlet = Outlet(stream)
        self._stream, self._quiet = stream, quiet
        self._live = is_terminal and can_move_cursor(env) and not quiet
        self._rows = LiveRows(self._outlet)
        self._is_over = False
        self._target, self._name = "", ""
        self._backlog: FollowedBacklog | None = None

    @contextmanager
    def follow(self, backlog: FollowedBacklog) -> Iterator["BacklogScreen"]:
        """Show a backlog run until it has ended."""
        self._backlog = backlog
        try:
            yield self
        finally:
            self.close()

    def __call__(self, *happened: object) -> None:
        lines = []
        for event in happened:
            if isinstance(event, backlog_events.BacklogStarted):
                self._target, self._name = event.target, "" if event.push else event.name
            text, tone = sentence(event)
            if text and not self._quiet:
                lines.append(self._style.paint(tone, text))
            if isinstance(event, backlog_events.BacklogFinished):
                self._live, self._is_over = False, True
                lines += [] if self._quiet else self._needs_person()
                ending = last_line(event, self._target, self._name)
                lines.append(self._style.paint(outcome_tone(event.exit_code), f"ralph: {ending}"))
        if lines:
            self._write(lines)

    def _needs_person(self) -> list[str]:
        """Return the parked tasks with the command to retry them, and the tasks that wait for parked ones."""
        board = self._backlog.board if self._backlog else Board()
        parked = [row for row in rows(board, {}) if row.state in ("parked", "blocked")]
        lines = []
        for row in parked[:50]:
            retry = f"; ralph work retry {quote(row.key)}" if row.state == "parked" else ""
            lines.append(f"{row.key}: {row.state}: {short(_reason(row) or row.job.task.title, 200)}{retry}")
        return [self._style.paint("warn", text) for text in lines]

    def tick(self) -> None:
        if self._live and not self._outlet.gone:
            self._write([])

    def announce(self, text: str) -> None:
        """Print at once that the backlog is about to end. A signal handler may call this during a write."""
        if self._is_over:  # nothing may follow the outcome
            return
        self._rows.write([text])

    def close(self) -> None:
        self._live = False
        self._write([])
        self._outlet.close()

    def _write(self, lines: list[str]) -> None:
        below: list[str] = []
        if self._live and self._backlog:
            columns, height = terminal_size(self._stream, 80)
            board = self._backlog.board
            all_rows = rows(board, self._backlog.summaries)
            below = ["", *table(board, all_rows, self._style, columns - 1, most=max(height - 5, 3))]
        self._rows.write(lines, below)
