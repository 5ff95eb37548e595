"""What do people see of a work on a backlog? A line for whatever happens to a task or at the gate, on a terminal a
table that says where each of them stands, and a page of what came of it by morning."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from msgspec import Struct

from ralph.core import events, work_events
from ralph.core.backlog import STATE_ORDER, Board, Job, displayed_states, forecast
from ralph.core.state import RunSummary
from ralph.core.text import listed, one_line, plural, short
from ralph.history.work_history import WorkHistory, WorkSpan
from ralph.show.outlet import Outlet, Style, choose, is_smart, outcome_tone, terminal_size
from ralph.show.plots import Html, element, joined
from ralph.show.report import code, escape_markdown, page
from ralph.show.words import cost, cut, duration, money

MOST_ROWS = 20
LONGEST_KEY = 60  # characters that are shown of a key
TONES = {"merged": "green", "working": "cyan", "ready": "cyan", "parked": "warn", "blocked": "yellow", "held": "yellow"}
_UP = "\x1b[{}A"
_ERASE = "\r\x1b[J"


class Row(Struct, frozen=True):
    """One task, as a table shows it."""

    key: str
    state: str
    title: str
    job: Job
    facts: RunSummary | None = None


def rows(board: Board, facts: Mapping[str, RunSummary | None]) -> list[Row]:
    """Every task; what needs a person first, what is over last."""
    states = displayed_states(board)
    made = [Row(key, states[key], job.task.title, job, facts.get(key)) for key, job in board.jobs.items()]
    return sorted(made, key=lambda row: STATE_ORDER.index(row.state))


def table(board: Board, made: Sequence[Row], style: Style, columns: int, *, most: int = MOST_ROWS) -> list[str]:
    """The table, with a last line that counts what it leaves out."""
    wide = max((len(short(row.key, LONGEST_KEY)) for row in made), default=1)
    lines = [_line(row, wide, style, columns) for row in made[:most]]
    left_out = made[most:]
    if left_out:
        counts = {state: sum(row.state == state for row in left_out) for state in STATE_ORDER}
        lines.append(style.paint("dim", f"  … {counted(counts)}"))
    return [*lines, style.paint("dim", cut(" " + totals(board), columns))]


def counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in counts.items() if number)


def totals(board: Board) -> str:
    """What is done, what it cost, and what is to come."""
    states = [*displayed_states(board).values()]
    counts = {state: states.count(state) for state in reversed(STATE_ORDER)}
    parts = [counted(counts) or "nothing yet"]
    if board.costs:
        parts.append(money(board.spent))
    if rest := forecast(board):
        digits = 0 if rest.more >= 10 else 2
        parts.append(f"≈ ${rest.more:.{digits}f} more ({rest.low:.{digits}f}–{rest.high:.{digits}f})")
    if board.stuck:
        parts.append(f"the gate stands still: {short(board.stuck, 300)}")
    if board.is_paused:
        parts.append("paused")
    return " · ".join(parts)


def _line(row: Row, wide: int, style: Style, columns: int) -> str:
    who = f"on {short(row.job.worker, 60)}" if row.job.worker and row.state == "working" else ""
    doing = row.facts.doing if row.facts and row.state == "working" else ""
    doing = short(doing, 40) if doing else short(_reason(row), 80)
    facts = [part for part in (who, _progress(row), doing) if part]
    text = f"{short(row.key, LONGEST_KEY):<{wide}}  {row.state:<9}  "
    title = one_line(row.job.task.about, 60)
    about = " · ".join([*facts, title] if row.state != "merged" else [title])
    room = max(columns - len(text) - 1, 10)
    return " " + style.paint(TONES.get(row.state, "plain"), text) + style.paint("dim", cut(about, room))


def _progress(row: Row) -> str:
    seen = row.facts
    if seen is None or row.state != "working":
        return money(row.job.cost_usd) if row.job.cost_usd else ""
    parts = [f"iteration {seen.finished + 1}"]
    if seen.checks:
        parts.append(f"checks {seen.checks_passed}/{seen.checks}")
    if seen.cost_usd is not None:
        parts.append(money(seen.cost_usd))
    return " ".join(parts)


def _reason(row: Row) -> str:
    """Why it stands where it stands."""
    awaited = row.job.task.after if row.state in ("waiting", "blocked") else ()
    return f"after {listed(awaited)}" if awaited else row.job.reason


def sentence(event: object) -> tuple[str, str]:
    """What an event means in one line, and in which tone; nothing where it is not worth one."""
    text, tone = _meaning(event)
    return one_line(text, 1000), tone


def _meaning(event: object) -> tuple[str, str]:
    """The same as whoever wrote it down spelled keys, targets and workers: an agent can write there."""
    match event:
        case work_events.WorkStarted():
            checks = f"{plural(len(event.checks), 'check')} on every candidate"
            again = "goes on" if event.resumed else f"{plural(event.slots, 'loop')} at a time"
            return f"work {event.name}: {event.backlog} → {event.target} ({again}, {checks})", "title"
        case work_events.TaskStarted():
            facts = [f"round {event.attempt}"] if event.attempt > 1 else []
            facts += [f"on {event.worker}"] if event.worker else []
            return f"{event.key}: a loop starts" + (f" ({', '.join(facts)})" if facts else ""), "plain"
        case work_events.TaskReady():
            cost = f", {money(event.cost_usd)}" if event.cost_usd is not None else ""
            return f"{event.key}: done and verified ({plural(len(event.files), 'file')}{cost})", "plain"
        case work_events.GateStarted():
            return f"gate: checks {listed(event.keys, 5)}", "dim"
        case work_events.TaskMerged():
            return f"{event.key}: merged as {event.commit[:12]}", "green"
        case work_events.TaskReturned():
            return f"{event.key}: sent back: {short(event.reason, 200)}", "yellow"
        case work_events.TaskParked():
            return f"{event.key}: parked: {short(event.reason, 300)}", "warn"
        case work_events.TaskWithdrawn():
            return f"{event.key}: withdrawn: {short(event.reason, 200)}", "yellow"
        case work_events.TaskQueued():
            return f"{event.key}: queued again: {short(event.reason, 200)}", "plain"
        case work_events.TaskWarned():
            return f"{event.key}: its agent is told that {listed(event.files, 5)} has changed meanwhile", "dim"
        case work_events.GateFinished() if event.verdict.red and len(event.verdict.tried) > 1:
            red = event.verdict.red
            return f"gate: {short(red.check, 100)} is red on {listed(event.verdict.tried, 5)}: halved", "yellow"
        case work_events.GateFinished() if event.verdict.stuck:
            return f"gate: stands still: {short(event.verdict.stuck, 300)}", "warn"
        case work_events.GateOpened():
            return f"gate: the target is green at {event.commit[:12]}", "dim"
        case work_events.WorkPaused():
            return "paused" if event.is_paused else "goes on", "yellow"
        case events.Notice():
            return short(event.text, 500), "yellow"
    return "", ""


def work_sentence(event: work_events.WorkFinished, target: str) -> str:
    """`17 of 20 merged into ralph/k3fa/merged, 2 parked, 1 blocked ($23.10)`."""
    parts = [f"{event.merged} of {event.tasks} merged into {target}"]
    parts += [f"{event.parked} parked"] if event.parked else []
    parts += [f"{event.blocked} blocked"] if event.blocked else []
    cost = f" ({money(event.cost_usd)})" if event.cost_usd is not None else ""
    why = {"budget": "the budget is spent", "interrupted": f"{event.reason}; go on with `ralph resume`"}
    reason = why.get(event.outcome) or (event.reason if event.outcome in ("fatal", "stuck", "timeout") else "")
    return one_line(f"{', '.join(parts)}{cost}" + (f"; {reason}" if reason else ""), 1000)


def last_line(event: work_events.WorkFinished, target: str, is_remote: bool) -> str:
    """The same, and how it is taken over."""
    return work_sentence(event, target) + (f": git merge {target}" if event.merged and not is_remote else "")


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
        self._is_over = False
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
                self._live, self._is_over = False, True
                # what needs a person comes before the last line
                board = Board() if self._quiet else self.board()
                parked = [row for row in rows(board, {}) if row.state in ("parked", "blocked")]
                said = (f"{row.key}: {row.state}: {short(_reason(row) or row.title, 200)}" for row in parked[:50])
                lines += [self._style.paint("warn", text) for text in said]
                ending = last_line(event, self._target, self._is_remote)
                lines.append(self._style.paint(outcome_tone(event.exit_code), f"ralph: {ending}"))
        if lines:
            self._write(lines)

    def tick(self) -> None:
        if self._live and not self._outlet.gone:
            self._write([])

    def announce(self, text: str) -> None:
        """Says at once that the work is to end. A signal handler may call this in mid-write."""
        if self._is_over:  # nothing may follow the outcome
            return
        self._outlet.write(f"{text}\n")
        self._drawn = 0

    def close(self) -> None:
        self._live = False
        self._write([])
        self._outlet.close()

    def _write(self, lines: list[str]) -> None:
        """In one write: the table goes, the lines come, the table is back."""
        text = (_UP.format(self._drawn - 1) if self._drawn > 1 else "") + _ERASE if self._drawn else ""
        text += "".join(f"{line}\n" for line in lines)
        self._drawn = 0
        if self._live:
            columns, height = terminal_size(self._stream, 80)
            most = max(height - 5, 3)
            made = ["", *table(self.board(), self.look(), self._style, columns - 1, most=most)]
            text += "\x1b[?7l" + "\n".join(made) + "\x1b[?7h"
            self._drawn = len(made)
        if text:
            self._outlet.write(text)


WIDE, ROW, LEFT = 960, 16, 120
FILLS = {
    "merged": "var(--good)",
    "ready": "var(--turn)",
    "refused": "var(--wait)",
    "red": "var(--bad)",
    "parked": "var(--bad)",
}
BADGES = {"merged": "good", "parked": "bad", "blocked": "warn", "held": "warn", "withdrawn": "calm"}


def summary(history: WorkHistory) -> str:
    """The work in one sentence."""
    if history.finished and history.started:
        return work_sentence(history.finished, history.target)
    states = [*history.states.values()]
    return f"{history.state}: {counted({state: states.count(state) for state in STATE_ORDER})}"


def html(history: WorkHistory) -> str:
    """One page: what needs you first, each task, and when loops and merges were."""

    return page(f"ralph: {history.run}", body(history))


def body(history: WorkHistory) -> Html:
    """What stands on the page."""
    tasks = [
        element("li", f"{job.task.key}: {short(why, 300)} ", element("code", f"ralph work retry {job.task.key}"))
        for job, why in history.needing()
    ]
    started = history.started
    about = [f"{started.backlog} → {started.target}", *(f"check: {one}" for one in started.checks)] if started else []
    return joined(
        element("h1", summary(history)),
        element("p.facts", [element("span", fact) for fact in [*about, *_figures(history)]]),
        element("div.card.needs", element("h2", "What needs you"), element("ul", tasks))
        if tasks
        else element("div.card.needs.calmly", element("h2", "Nothing needs you.")),
        element("section", element("h2", "Timeline"), timeline(history)),
        element("section", element("h2", "Tasks"), _task_table(history)),
    )


def _figures(history: WorkHistory) -> list[str]:
    cost = [money(history.board.spent)] if history.board.costs else []
    loops = sum(span.kind == "loop" for span in history.spans)
    took = duration(max(history.last - history.began, 0.0))
    return [plural(loops, "loop"), plural(history.merges, "merge"), f"{history.returns} sent back", *cost, took]


def timeline(history: WorkHistory) -> Html:
    """A row for each task and one for the gate: its loops, and what came of each."""
    keys = [*dict.fromkeys(key for span in history.spans for key in span.keys if span.kind == "loop")][:200]
    whole = max(history.last - history.began, 1e-3)
    rows = ["gate", *keys]
    drawn: list[Html] = []
    for number, name in enumerate(rows):
        y = number * ROW
        drawn.append(element("text.label", name, x=LEFT - 8, y=y + 12, text_anchor="end"))
        spans = [
            s for s in history.spans if (s.kind == "gate" if name == "gate" else s.kind == "loop" and name in s.keys)
        ]
        drawn += [_bar(span, history, whole, y) for span in spans]
        merged = [s for s in history.spans if s.kind == "gate" and s.result == "merged" and name in s.keys]
        drawn += [element("circle", cx=_x(s.ended, history, whole), cy=y + 8, r=4, fill="var(--good)") for s in merged]
    size = {"viewBox": f"0 0 {WIDE + 20} {len(rows) * ROW + 4}", "role": "img"}
    said = f"loops and merges over {duration(whole)}"
    plot = element("svg.plot", *drawn, **size, aria_label=said)
    return element("div.scroll", plot, tabindex="0", role="region", aria_label="Timeline")


def _x(at: float, history: WorkHistory, whole: float) -> int:
    return LEFT + round((at - history.began) / whole * (WIDE - LEFT))


def _bar(span: WorkSpan, history: WorkHistory, whole: float, y: int) -> Html:
    start, end = _x(span.began, history, whole), _x(span.ended or history.last, history, whole)
    title = element("title", f"{', '.join(span.keys[:10])}: {span.result or 'at work'}")
    fill = FILLS.get(span.result, "var(--pause)")
    return element("rect", title, x=start, y=y + 3, width=max(end - start, 2), height=ROW - 6, rx=2, fill=fill)


def _task_table(history: WorkHistory) -> Html:
    states = history.states
    head = element("tr", [element("th.brief", name) for name in ("Task", "State", "Attempts", "Cost", "Title", "Why")])
    rows = []
    for key, job in sorted(history.board.jobs.items(), key=lambda pair: STATE_ORDER.index(states[pair[0]])):
        badge = element("span", states[key], class_=f"badge {BADGES.get(states[key], 'calm')}")
        spent = cost(job.cost_usd)
        short_ones = [element("td.brief", cell) for cell in (element("code", key), badge, str(job.attempts), spent)]
        long_ones = [element("td", short(text, 200)) for text in (job.task.about, job.reason)]
        rows.append(element("tr", short_ones, long_ones))
    table = element("table", element("thead", head), element("tbody", rows))
    return element("div.scroll", table, tabindex="0", role="region", aria_label="Tasks")


def markdown(history: WorkHistory) -> str:
    """For a pull request or a mail."""

    states = history.states
    lines = [f"## {escape_markdown(summary(history), 600)}", "", " · ".join(_figures(history)), ""]
    if needing := history.needing():
        lines += [
            "**What needs you**",
            "",
            *(f"- {code(job.task.key)}: {escape_markdown(why)}" for job, why in needing),
            "",
        ]
    lines += ["| task | state | attempts | cost | title |", "|---|---|---|---|---|"]
    for key, job in history.board.jobs.items():
        spent = cost(job.cost_usd)
        title = escape_markdown(job.task.about, 120)
        lines.append(f"| {code(key)} | {states[key]} | {job.attempts} | {spent} | {title} |")
    return "\n".join([*lines, ""])


def lines(history: WorkHistory) -> Sequence[str]:
    """`ralph show`: the merges and loops, one a line, as they came."""
    told = []
    for span in history.spans:
        at = time.strftime("%H:%M:%S", time.localtime(span.began))
        took = duration(max((span.ended or history.last) - span.began, 0.0))
        told.append(f"{at}  {span.kind}  {listed(span.keys, 8)}: {one_line(span.result) or 'at work'} ({took})")
    return told
