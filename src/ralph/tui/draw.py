"""Lines for the panes of the TUI, painted and no wider than their pane."""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TextIO

from msgspec.structs import replace

from ralph.core.events import TodoItem
from ralph.core.text import one_line, plural, short
from ralph.history.fold import Fold
from ralph.history.overview import Now
from ralph.history.run_history import CheckResult, PastIteration
from ralph.history.states import state_of
from ralph.show.outlet import ASCII, GLYPHS, Marks, Style, choose
from ralph.show.words import agent_name, cut, duration, from_home, moment, nickname, spent, why_ended, width, wrap

PLAIN = replace(
    ASCII,
    passed="+",
    failed="x",
    refused="x",
    warning="!",
    info="i",
    waiting="~",
    paused="=",
    question="?",
    person=">",
    retry="~",
    review=">",
    todo_done="+",
    todo_active=">",
    todo_pending=".",
)
"""ASCII marks of one column each."""
STEPS, PLAIN_STEPS = "·▁▂▃▄▅▆▇█", "._-=#"  # of a bar, from empty to full


def tui_style(stream: TextIO | None, env: Mapping[str, str] = os.environ) -> Style:
    """Return the marks that this terminal can display. If colours are off, textual drops them."""
    return Style(PLAIN if choose(stream, env, True, True, None).marks is ASCII else GLYPHS, True)


def state_mark(name: str, style: Style) -> str:
    state = state_of(name)
    return style.paint(state.color, state.plain_mark if style.marks is PLAIN else state.mark)


def run_rows(run: Now, columns: int, style: Style, *, is_tall: bool, here: str = "") -> list[str]:
    """Return a run's lines in the list: state and iteration, then its goal, with its folder if that is not `here`.

    A run with a single line shows its goal; the mark shows its state.
    """
    number = run.steps(least=2)
    place = "" if run.workspace == here else run.workspace.rpartition("/")[2] + ": "
    goal = one_line(f"{place}{run.goal}") if run.goal else ""
    title = goal if goal and not is_tall else f"{nickname(run.run)} {run.label}"
    name = cut(title, columns - 3 - len(number))
    gap = " " * (columns - 2 - width(name) - len(number))
    row = f"{state_mark(run.label, style)} {name}{gap}{style.paint('dim', number)}"
    return [row, style.paint("dim", "  " + cut(goal, columns - 2))] if is_tall else [row]


def head(run: Now, now: float, columns: int, style: Style) -> list[str]:
    """Return the three lines above the stream: state and spending, the goal, and the run's activity or need."""
    dot = f" {style.marks.dot} "
    took = spent(round(run.lasted_s), run.cost_usd, run.tokens)
    facts = [run.progress(columns >= 60) if run.max_iterations != 1 else "", *took, short(agent_name(run.agent), 30)]
    name = " ".join((nickname(run.run), run.state if run.verified else "done (unverified)", *run.rights))
    rest = cut(dot + dot.join(fact for fact in facts if fact), columns - len(name) - 2)
    goal = cut(f"  {short(run.goal, 300)}", columns)
    title = f"{state_mark(run.label, style)} {style.paint('bold', name)}{rest}"
    tone, text = _headline(run, now, columns, style.marks)
    return [title, style.paint("dim", goal), style.paint(tone, cut(f"  {one_line(text, 400)}", columns))]


def _headline(run: Now, now: float, columns: int, marks: Marks) -> tuple[str, str]:
    """Return tone and text of the run's question, its reason to wait, or its activity."""
    if not run.alive:
        how = why_ended(run) or ("its process died; r resumes it" if run.state == "killed" else run.doing)
        return state_of(run.label).color, f"{marks.to} {how}{'; a accepts it' if run.mergeable else ''}"
    if run.questions:
        return "warn", f"{marks.question} t answers: {run.questions[0]}"
    if run.until:
        return "yellow", f"{marks.waiting} {run.reason} until {moment(run.until, 0)}"
    if run.held or run.pausing:
        return "yellow", f"{marks.paused} {run.reason if run.held else 'pauses after this turn'}; r resumes it"
    took = now - run.since if run.since else 0
    rest = f" {duration(round(took))}" if took >= 3 else ""
    rest += f" {marks.person} {plural(run.notes, 'note')} for the next prompt" if run.notes else ""
    doing = cut(one_line(run.doing or "running", 400), columns - 4 - width(rest))
    return "cyan", f"{marks.check} {doing}{rest}"


def graph(past: Sequence[PastIteration], columns: int, style: Style) -> str:
    """Draw a bar per iteration, as high as the share of checks that passed."""
    steps, bars = PLAIN_STEPS if style.marks is PLAIN else STEPS, ""
    for iteration in past[-columns:]:
        passed = sum(check.passed for check in iteration.checks)
        share = passed / len(iteration.checks) if iteration.checks else float(iteration.is_green)
        tone = "green" if iteration.is_green else "yellow" if passed else "red"
        bars += style.paint(tone, steps[round(share * (len(steps) - 1))])
    return bars


def checks_pane(fold: Fold, columns: int, rows: int, style: Style) -> list[str]:
    """Return the checks pane: the graph and the latest results."""
    if not fold.last_results:
        return [style.paint("dim", "none")]
    bars = [graph(past, columns, style)] if (past := fold.history.whole) else []
    return [*bars, *checks(fold.last_results, fold.running, columns, rows - len(bars), style)]


def checks(
    results: Mapping[str, CheckResult | None], running: Collection[str], columns: int, rows: int, style: Style
) -> list[str]:
    """Return the latest result of each check; failing ones first if there is no room for all."""
    marks, names = style.marks, list(results)
    if len(names) > rows:
        red = {name for name, result in results.items() if result and not result.passed}
        names.sort(key=lambda name: (name not in red, name not in running))
    lines = []
    for name in names[:rows]:
        result, took = results[name], ""
        if name in running:
            mark, took = style.paint("cyan", marks.check), marks.more
        elif result is None:
            mark = style.paint("dim", marks.dot)
        else:
            mark, took = style.sign(result.passed), duration(result.seconds)
        room = columns - 3 - len(took)
        label = cut(one_line(name, 400), room)
        lines.append(f"{mark} {label}{' ' * (room - width(label))} {style.paint('dim', took)}")
    if len(names) > rows > 0:
        lines[-1] = style.paint("dim", f"{marks.more} {len(names) - rows + 1} more")
    return lines


def todo(items: Sequence[TodoItem], columns: int, rows: int, style: Style) -> list[str]:
    """Return the part of the todo list around the active item."""
    marks = style.marks
    looks = {"done": ("green", marks.todo_done, "dim"), "active": ("yellow", marks.todo_active, "bold")}
    active = next((at for at, item in enumerate(items) if item.status != "done"), len(items))
    first = min(max(active - rows // 3, 0), max(len(items) - rows, 0))
    lines = []
    for item in items[first : first + rows]:
        text = cut(short(item.text, 200), columns - len(marks.todo_pending) - 1)
        tone, mark, emphasis = looks.get(item.status, ("dim", marks.todo_pending, ""))
        lines.append(f"{style.paint(tone, mark)} {style.paint(emphasis, text) if emphasis else text}")
    return lines


def top(workspace: str, home: str, plan: str, columns: int, style: Style) -> list[str]:
    """Return the top line: the folder, and what a goal would start."""
    workspace = from_home(workspace, home)
    name = f" ralph {style.marks.dot} "
    plan_words = cut(f" next: {plan} ", max(columns - len(name) - 8, 10))
    room = max(columns - len(name) - width(plan_words), 1)
    place = workspace if width(workspace) <= room else "…" + workspace[-max(room - 1, 0) :]
    return [f"{style.paint('title', name)}{place}{' ' * (room - width(place))}{style.paint('dim', plan_words)}"]


def paragraphs(text: str, columns: int) -> list[str]:
    return [row for line in text.split("\n") for row in wrap(line, columns)]
