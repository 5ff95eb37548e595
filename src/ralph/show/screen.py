"""The line screen of a run: lines as things happen and, on a terminal, one live status line."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import IO

from msgspec.structs import replace

from ralph.core import events as e
from ralph.core.events import TALK, AgentStarted, CheckStarted, Event, ReviewStarted, RunFinished, ToolStarted
from ralph.core.model import Outcome
from ralph.core.state import Activity
from ralph.core.text import plural
from ralph.history.fold import Fold
from ralph.history.run_history import RunHistory
from ralph.show.event_lines import EventLines
from ralph.show.needs import PURPOSES, command, next_steps
from ralph.show.outlet import (
    WRITE_TIMEOUT,
    LiveRows,
    Outlet,
    Style,
    can_move_cursor,
    choose,
    outcome_tone,
    terminal_size,
)
from ralph.show.summary import proof_lines, table
from ralph.show.turn_lines import VERBOSE, LineLimits
from ralph.show.words import cut, duration, moment, money, outcome_sentence, whereabouts, wrap
from ralph.store.folder import load_exam_outputs

_WIDTH = 80  # if it is unknown
_OUTCOME_TIMEOUT = 2.0  # seconds that a slow reader gets for the outcome
_STOPPING_TIMEOUT = 0.2  # the same for a run that is stopped
_REDRAW_INTERVAL = 0.1  # seconds
# The live line is redrawn at once for these, because nothing else shows them.
_STARTS = (AgentStarted, ToolStarted, CheckStarted, ReviewStarted)


MAX_RATE = 4_000  # lines a second
_ROW = 100  # characters: a line that is longer takes several rows of a screen


class RateLimit:
    """Limits how many lines of talk are printed per second. `left_out` counts the events that were not shown."""

    def __init__(self, most: float) -> None:
        self.left_out = 0
        self._most, self._used, self._since = most, 0, 0.0

    def has_room(self, now: float) -> bool:
        if not 0 <= now - self._since < 1:
            self._used, self._since = 0, now
        return self._used < self._most

    def count(self, lines: list[str]) -> None:
        self._used += len(lines) + sum(map(len, lines)) // _ROW


class Screen:
    """A listener that prints events. `tick(now)` (epoch seconds) updates the live line. Without `lines` only the
    outcome is printed; without `columns` lines may have any length.
    """

    def __init__(
        self,
        outlet: Outlet,
        style: Style,
        lines: EventLines | None,
        *,
        live: bool = False,
        columns: Callable[[], int] | None = None,
        timestamps: bool = False,
        clock: Callable[[], float] = time.time,
        max_rate: float = MAX_RATE,
    ) -> None:
        self._outlet, self._style, self._lines = outlet, style, lines
        self._live = LiveRows(outlet)
        self._columns, self._timestamps, self._clock = columns, timestamps, clock
        self._fold = lines.fold if lines else Fold("")
        self._rate = RateLimit(max_rate)
        self._skipped = 0
        self._status = Status(style, self._fold) if live else None
        self._drawn_at = 0.0
        self._is_over = False

    @property
    def is_live(self) -> bool:
        """Return whether there is a live line for `tick` to update."""
        return self._status is not None and not self._outlet.gone

    @property
    def is_gone(self) -> bool:
        """Return whether the reader has gone away."""
        return self._outlet.gone

    def reads(self) -> bool:
        """Return whether the agent's next words would be shown."""
        return self._lines is not None and self._rate.has_room(self._clock())

    def __call__(self, *happened: Event) -> None:
        if self._lines is not None:
            self._show(happened, self._lines)
        for event in happened:
            if self._lines is None:
                self._fold.add(event, self._clock())
            if isinstance(event, RunFinished):
                self._finish(event)

    def belongs_to(self, run: str) -> None:
        """Set the run whose events will come; its name is printed at the end."""
        self._fold.history.run = run

    def tick(self, now: float | None = None) -> bool:
        """Update the live line; return whether there is one."""
        if self.is_live:
            self._write([], self._clock() if now is None else now)
        return self.is_live

    def announce(self, text: str) -> None:
        """Print immediately that the run is stopping, even in quiet runs. A signal handler may call this during a
        write.
        """
        if self._status is not None:
            self._status.is_ending = True
        if self._is_over:  # nothing may follow the outcome
            return
        self._live.write([text])

    def close(self) -> None:
        """Restore the terminal."""
        self._status = None
        self._skipped = 0  # nothing may follow the outcome
        self._write([])
        self._outlet.close()

    def _show(self, happened: Iterable[Event], lines: EventLines) -> None:
        if self._columns is not None:
            lines.talk.columns = max(self._columns() - (len("[HH:MM:SS] ") if self._timestamps else 0), 1)
        now = self._clock()
        text = self._readable(happened, lines, now)
        if self._timestamps and text:
            stamp = time.strftime("[%H:%M:%S] ", time.localtime(now))
            text = [stamp + line if line else line for line in text]
        if self._status is None:
            if text:
                self._write(text)
            return
        for event in happened:
            self._status(event, now)
        begins = any(isinstance(event, _STARTS) for event in happened)
        if text or begins or not self._live.is_drawn or now - self._drawn_at >= _REDRAW_INTERVAL:
            self._write(text, now)

    def _readable(self, happened: Iterable[Event], lines: EventLines, now: float) -> list[str]:
        """Return the lines for events, but no more talk than a person could read."""
        text: list[str] = []
        for event in happened:
            if type(event) in TALK and not self._rate.has_room(now):
                self._rate.left_out += 1
                continue
            if self._rate.left_out:
                more = plural(self._rate.left_out, "more thing")
                text.append(self._aside(f"{more} came too fast to be shown: see the log"))
                self._rate.left_out = 0
            rows = lines(event, now)
            self._rate.count(rows)
            text += rows
        return text

    def _aside(self, text: str) -> str:
        return self._style.paint("dim", f"{self._style.marks.more} {text}")

    def _room(self) -> int:
        return self._columns() if self._columns else _WIDTH

    def _finish(self, event: RunFinished) -> None:
        """Print the summary, the location of the work and, last, the outcome."""
        self._status, self._is_over = None, True
        text = [] if self._lines is None else [""]
        history = self._fold.history
        if self._lines is not None and len(history.whole) > 1:
            text += [*table(history, self._style, self._room()), ""]
        is_named = self._lines is not None and bool(history.run)
        if history.proof and self._lines is not None:
            text += [row for line in proof_lines(history.proof, self._style) for row in self._rows(line)]
            text.append("")
        if history.is_refused_by_exam:
            for output in load_exam_outputs(history.run)[-1:]:
                text += self._rows(f"What the exam printed is in {output.log}") if not output.passed else []
        text += [row for line in whereabouts(history, briefly=is_named) for row in self._rows(line)]
        if is_named:
            text += self._next_steps(history)
        sentence = self._rows(f"ralph: {outcome_sentence(history)}")
        text += [self._style.paint(outcome_tone(event.exit_code), row) for row in sentence]
        self._write(text, timeout=_STOPPING_TIMEOUT if event.outcome is Outcome.INTERRUPTED else _OUTCOME_TIMEOUT)

    def _rows(self, sentence: str) -> list[str]:
        """Return one line, or several if the terminal is too narrow."""
        return wrap(sentence, self._columns()) if self._columns else [sentence]

    def _next_steps(self, history: RunHistory) -> list[str]:
        """Return the name of the run and the commands that make sense now."""
        steps = [(command(step), PURPOSES.get(step.verb, "")) for step in next_steps(history)]
        size = max((len(typed) for typed, _ in steps), default=0)
        paint, width = self._style.paint, self._room() - size - 4
        whys = [cut(why, width, self._style.marks.more) if width > 8 else "" for _, why in steps]
        lines = [f"  {word:<{size}}  {paint('dim', why)}".rstrip() for (word, _), why in zip(steps, whys, strict=True)]
        return [f"{paint('dim', 'run')} {history.run}", *lines, ""]

    def _write(self, lines: list[str], now: float = 0.0, timeout: float = WRITE_TIMEOUT) -> None:
        """Erase the live line, print the lines and draw the live line again, in one write."""
        skipped = self._skipped
        if skipped and self._lines is not None:
            lines = [self._aside(f"{plural(skipped, 'line')} skipped: the reader is slow"), *lines]
        rows: list[str] = []
        if self._status is not None:
            rows = [" " + self._status.line(now, self._room() - 2)]
            self._drawn_at = now
        written = self._live.write(lines, rows, timeout)
        self._skipped = 0 if written else skipped + len(lines) - (skipped > 0)


def make_screen(
    stream: IO[str] | None,
    *,
    quiet: bool = False,
    verbose: bool = False,
    agent_output: bool = True,
    color: bool | None = None,
    emoji: bool | None = None,
    live: bool = True,
    timestamps: bool = False,
    output_lines: int | None = None,
    output_chars: int | None = None,
    waits: bool = False,
    clock: Callable[[], float] = time.time,
    env: Mapping[str, str] = os.environ,
) -> Screen:
    """Return the screen for `stream`, usually stderr. None lets the stream and `env` decide. `quiet` prints only the
    outcome; without `agent_output` the agent's words and tools are hidden; without `live` there is no live line even on
    a terminal; `output_lines` and `output_chars` limit a tool's output; `waits`: wait for a slow reader instead of
    skipping lines; `clock` gives the epoch seconds for timestamps and the live line.
    """
    is_terminal = stream is not None and stream.isatty()
    live = live and is_terminal and can_move_cursor(env) and not quiet
    style = choose(stream, env, is_terminal, color, emoji)
    lines = None
    if not quiet:
        limits = VERBOSE if verbose else LineLimits()
        limits = limits if output_lines is None else replace(limits, output_lines=output_lines)
        limits = limits if output_chars is None else replace(limits, output_chars=output_chars)
        lines = EventLines(style, verbose=verbose, agent_output=agent_output, announces=not live, limits=limits)
    return Screen(
        Outlet(stream, waits),
        style,
        lines,
        live=live,
        columns=(lambda: terminal_size(stream, _WIDTH)[0]) if is_terminal else None,
        timestamps=timestamps,
        clock=clock,
        max_rate=inf if waits else MAX_RATE,
    )


_MIN_SECONDS = 3  # from which the live line shows how long an activity has taken


class Status:
    """Describes the current state of a run in one line. `fold` is its history so far."""

    def __init__(self, style: Style, fold: Fold) -> None:
        self.style, self._fold = style, fold
        self.is_ending = False
        """Whether the run was asked to end and is finishing its turn."""
        self._began: float | None = None
        self._iteration = "ralph"
        self._activity = Activity()

    def __call__(self, event: e.Event, now: float) -> None:
        self._began = now if self._began is None else self._began
        self._activity(event, now)
        if isinstance(event, e.IterationStarted):
            of = f"/{event.max_iterations}" if event.max_iterations is not None else ""
            self._iteration = f"iteration {event.iteration}{of}"

    def line(self, now: float, columns: int) -> str:
        """Return the painted line, at most `columns` wide."""
        history, todo = self._fold.history, self._fold.todo
        parts = [self._iteration, duration(max(round(now - (self._began or now)), 0))]
        if history.cost_usd is not None:
            parts.append(money(history.cost_usd))
        if todo:
            parts.append(f"todo {sum(item.status == 'done' for item in todo)}/{len(todo)}")
        if self.is_ending:
            parts.append("Ctrl-C again ends it now")
        if history.waits and history.until:
            seconds = max(history.until - now, 0.0)
            parts.append(f"waiting {duration(round(seconds))} until {moment(history.until, seconds)}")
        elif doing := self._activity.text:
            took = now - self._activity.since
            parts.append(doing + (f" {duration(round(took))}" if took >= _MIN_SECONDS else ""))
        line = cut(f" {self.style.marks.dot} ".join(parts), columns, self.style.marks.more)
        place = len(parts[0])
        return self.style.paint("cyan", line[:place]) + self.style.paint("dim", line[place:])
