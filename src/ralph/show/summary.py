"""The table with a row per iteration, whose columns are also those of reports and the web UI; the text of `ralph show`,
and the list of all runs, readable without colours.
"""

import sys
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ralph.core.gains import format_change
from ralph.core.proof import Proof
from ralph.core.text import clean, head, one_line, plural, short
from ralph.history.overview import Now
from ralph.history.run_history import PastIteration, RunHistory
from ralph.history.states import RESULT_TONES, state_of
from ralph.show.needs import needs
from ralph.show.outlet import GLYPHS, Marks, Style, outcome_tone
from ralph.show.words import (
    baseline_sentence,
    cost,
    count,
    cut,
    duration,
    ending_reason,
    from_home,
    hand_over_words,
    happened,
    how_it_failed,
    moment,
    money,
    outcome_sentence,
    progress_words,
    proof_sentence,
    spent,
    width,
)
from ralph.store.folder import ExamOutput

_MOST_ROWS = 60
_GAP = "  "
_FACTS = ("Tools", "Cost", "Time", "What happened")
_NARROW, _HIDDEN = 80, ("Tools", "Time")  # a terminal with fewer columns has no room for these
MAX_EXAM_LINES = 20
MAX_EXAM_TEXT = 20_000  # bytes


class Column(Struct):
    """A column of a table. `kind` is the CSS classes of its cells: .num, .cell, .wrap, .lesser (hidden on phones) or
    nothing. `most` is how wide it may be in a terminal; 0: no limit."""

    title: str
    cells: Sequence[str]
    total: str = ""
    kind: str = ""
    most: int = 0


def iteration_columns(past: Sequence[PastIteration], history: RunHistory) -> list[Column]:
    """Return what each iteration used and how it ended, without its number and its checks. Totals are of the run."""
    calls = ["" if iteration.tool_calls is None else str(iteration.tool_calls) for iteration in past]
    all_calls = str(sum(iteration.tool_calls or 0 for iteration in history.whole))
    with_total: list[PastIteration | RunHistory] = [*past, history]
    tokens = [count(iteration.usage.tokens) if iteration.usage.tokens else "" for iteration in with_total]
    files = ["" if iteration.files is None else str(len(iteration.files)) for iteration in with_total]
    progress, results = [], []
    for iteration in past:
        passed_on = hand_over_words(iteration.hand_over) if iteration.hand_over else ""
        progress.append("; ".join(filter(None, (progress_words(iteration, history), passed_on))))
        committed = ", committed" if any(ok and task == "commit" for task, ok, _ in iteration.scm) else ""
        reviews = f", {plural(len(iteration.reviews), 'review')}" if iteration.reviews else ""
        results.append(short(happened(iteration), 200) + committed + reviews)
    return [
        Column("Tools", calls, all_calls, ".num.lesser"),
        Column("Tokens", tokens[:-1], tokens[-1], ".num.lesser"),
        *_spent_columns(past, history),
        Column("Files", files[:-1], files[-1], ".num.lesser"),
        Column("Progress", progress, kind=".wrap"),
        Column("What happened", results, "total", ".wrap"),
    ]


def attempt_columns(past: Sequence[PastIteration], history: RunHistory) -> list[Column]:
    """Return what each attempt to improve a number tried, and its result, without its number."""
    assert history.first_numbers
    total = "total"
    if history.end_numbers:
        total = f"start to end {format_change(history.end_numbers.gain, history.first_numbers.metric)}"
    return [
        Column("Result", [iteration.gain or iteration.result for iteration in past], total, ".wrap"),
        Column("Idea", [iteration.idea for iteration in past], kind=".wrap"),
        *_spent_columns(past, history),
    ]


def refusal_columns(history: RunHistory) -> list[Column]:
    """Return the refused claims; several gates may object to one claim."""
    rows = [iteration for iteration in history.iterations if iteration.refused]
    reasons = [few_lines([refused.reason for refused in iteration.refused], 3) for iteration in rows]
    return [
        Column("Iteration", [str(iteration.number) for iteration in rows], kind=".num"),
        Column("The agent claimed", [iteration.refused[0].claim for iteration in rows]),
        Column(
            "Refused by",
            [", ".join(dict.fromkeys(refused.gate for refused in iteration.refused)) for iteration in rows],
        ),
        Column("Because", reasons, kind=".wrap.lines"),
    ]


def _spent_columns(past: Sequence[PastIteration], history: RunHistory) -> list[Column]:
    return [
        Column("Cost", [cost(iteration.usage.cost_usd) for iteration in past], cost(history.cost_usd), ".num"),
        Column("Time", [duration(iteration.seconds) for iteration in past], duration(history.seconds), ".num"),
    ]


def share_of_checks(iteration: PastIteration) -> str:
    """Return how many checks passed: `2/3`; "" if none ran."""
    return f"{sum(check.passed for check in iteration.checks)}/{len(iteration.checks)}" if iteration.checks else ""


def table(history: RunHistory, style: Style, room: int = 80) -> list[str]:
    """Return the lines of the summary, at most `room` wide."""
    whole = history.whole
    if not whole:
        return []
    marks = style.marks
    past = [*whole[: _MOST_ROWS // 2], *whole[-_MOST_ROWS // 2 :]] if len(whole) > _MOST_ROWS else whole
    has_total = len(whole) > 1
    hidden = _HIDDEN if room < _NARROW else ()
    used = [
        column for column in _columns(past, history, marks, room) if any(column.cells) and column.title not in hidden
    ]
    columns = [_pad_column(column, marks, has_total) for column in used]
    rows = [cut((_GAP + _GAP.join(cells)).rstrip(), room, marks.more) for cells in zip(*columns, strict=True)]
    tones = ["dim", *map(_tone, past), *(["bold"] if has_total else [])]
    lines = [style.paint(tone, row) for tone, row in zip(tones, rows, strict=True)]
    if len(whole) > len(past):
        gap = f"{_GAP}{marks.more} {plural(len(whole) - len(past), 'more iteration')}"
        lines.insert(1 + _MOST_ROWS // 2, style.paint("dim", gap))
    return lines


def _pad_column(column: Column, marks: Marks, has_total: bool) -> list[str]:
    """Return the title, the cells and the total, all of them equally wide."""
    cells = [column.title.lower(), *column.cells, *([column.total] if has_total else [])]
    cells = [cut(cell, column.most or sys.maxsize, marks.more) for cell in cells]
    size = max(map(width, cells))
    return [_pad(cell, size, ".num" in column.kind) for cell in cells]


def _columns(rows: list[PastIteration], history: RunHistory, marks: Marks, room: int) -> list[Column]:
    if history.first_numbers:
        number = Column("Attempt", [str(iteration.number) for iteration in rows], kind=".num")
        result, idea, *spent_columns = attempt_columns(rows, history)
        result.most, idea.most = 2 * room // 5, room // 5
        signs = [marks.passed if iteration.result == "kept" else marks.failed for iteration in rows]
        result.cells = [f"{sign} {cell}" for sign, cell in zip(signs, result.cells, strict=True)]
        return [number, result, idea, *spent_columns]
    number = Column("#", [str(iteration.number) for iteration in rows], kind=".num")
    checks = Column("Checks", [_checks(iteration, marks) for iteration in rows], most=room // 3)
    facts = [column for column in iteration_columns(rows, history) if column.title in _FACTS]
    return [number, checks, *facts]


def _checks(iteration: PastIteration, marks: Marks) -> str:
    if not iteration.checks:
        return ""
    failed = [short(check.name, 60) for check in iteration.checks if not check.passed]
    share = share_of_checks(iteration)
    return f"{marks.failed} {share} {', '.join(failed)}" if failed else f"{marks.passed} {share}"


def _tone(iteration: PastIteration) -> str:
    return {"good": "green", "bad": "yellow"}.get(RESULT_TONES[iteration.result], "plain")


def _pad(text: str, size: int, is_number: bool = False) -> str:
    space = " " * (size - width(text))
    return space + text if is_number else text + space


MOST_PARTS = 12
MOST_LINES = 14  # of a fact about an iteration, in the terminal


def render_history(history: RunHistory, style: Style, exams: Sequence[ExamOutput] = ()) -> Iterator[str]:
    """Return the lines of `ralph show`, with what the exams printed."""
    dot = f" {style.marks.dot} "
    facts = [history.agent, *history.rights, history.preset, history.workspace, history.branch]
    yield style.paint("title", f"run {history.run}") + dot + dot.join(short(fact, 200) for fact in facts if fact)
    yield f"  {style.paint('dim', 'goal   ')} {short(history.goal, 500)}"
    took = spent(history.seconds, history.cost_usd, history.usage.tokens)
    if history.files is not None:
        took.append(f"{plural(len(history.files), 'file')} changed")
    yield f"  {style.paint('dim', 'began  ')} {moment(history.began, 1e9)}, {', '.join(took)}"
    if before := baseline_sentence(history):
        yield f"  {style.paint('dim', 'checks ')} {before}"
    for iteration in history.iterations:
        yield ""
        yield from _iteration(iteration, history, style)
    yield ""
    if history.proof:
        yield from proof_lines(history.proof, style)
        yield ""
    yield from exam_lines(exams, style)
    wanted = needs(history)
    if wanted:
        yield style.paint("bold", "what needs you")
        for need in wanted:
            yield f"  {style.marks.check} {need.text}" + (f"  {need.commands}" if need.actions else "")
        yield ""
    tone = outcome_tone(history.exit_code) if history.outcome else "cyan"
    yield style.paint(tone, f"ralph: {outcome_sentence(history)}")


def proof_lines(proof: Proof, style: Style) -> list[str]:
    """Return what a proof found: the sentence, and the first line of each untested part."""
    tone = "green" if proof.verdict == "tested" else "yellow" if proof.untested else "dim"
    parts = [f"  {short(part.place, 200)}  {style.paint('dim', short(part.line, 200))}" for part in proof.untested]
    more = [f"  {style.marks.more} {plural(len(parts) - MOST_PARTS, 'more part')}"] if len(parts) > MOST_PARTS else []
    return [style.paint(tone, proof_sentence(proof)), *parts[:MOST_PARTS], *more]


def exam_lines(outputs: Sequence[ExamOutput], style: Style) -> Iterator[str]:
    """Yield each exam with the end of its output and the path of its log, for the person only: no report in the
    workspace has it, where the agent could read it.
    """
    if outputs:
        yield style.paint("bold", "exams, which the agent doesn't see")
    for output in outputs:
        title, ending = exam_words(output)
        yield f"  {style.sign(output.passed)} {title}  {style.paint('dim', ending)}"
        is_shown = output is outputs[-1] and not output.passed
        lines = clean(output.text(MAX_EXAM_TEXT)).rstrip().split("\n") if is_shown else []
        yield from (f"    {style.paint('dim', line[:500])}" for line in lines[-MAX_EXAM_LINES:] if line)
        yield f"    {style.marks.to} {output.log}"
    if outputs:
        yield ""


def exam_words(output: ExamOutput) -> tuple[str, str]:
    """Return the title of an exam, and how it ended."""
    ending = f"{'passed' if output.passed else output.ending}, {duration(output.duration)}"
    return f"{output.stage}: {short(output.command, 200)}", ending


def _iteration(iteration: PastIteration, history: RunHistory, style: Style) -> Iterator[str]:
    marks, paint = style.marks, style.paint
    facts = spent(iteration.seconds, iteration.usage.cost_usd, iteration.usage.tokens)[0 if iteration.is_whole else 1 :]
    if iteration.tool_calls is not None:
        facts.append(plural(iteration.tool_calls, "tool call"))
    if iteration.denials:
        facts.append(plural(len(iteration.denials), "denial"))
    title = (
        f"{paint('title', f'iteration {iteration.number}')}  {paint(_tone(iteration), short(happened(iteration), 200))}"
    )
    yield f"{title}  {paint('dim', ', '.join(facts))}".rstrip()
    for name, text in iteration_details(iteration, history, marks):
        lines = clean(text).split("\n")
        if len(lines) > MOST_LINES:
            lines[MOST_LINES:] = [f"{marks.more} {plural(len(lines) - MOST_LINES, 'more line')}"]
        for at, line in enumerate(lines):
            label = paint("dim", f"{'' if at else name.lower():<14}")
            tone = "red" if line.startswith(marks.failed) else "plain"
            yield f"  {label}  {paint(tone, head(line, 500, marks.more))}".rstrip()


def iteration_details(iteration: PastIteration, history: RunHistory, marks: Marks = GLYPHS) -> list[tuple[str, str]]:
    """Return what is known about an iteration as names and texts, some of them with several lines."""

    def signed(passed: bool, text: str) -> str:
        return f"{marks.passed if passed else marks.failed} {text}"

    checks = []
    for check in sorted(iteration.checks, key=lambda check: check.passed):  # failed ones first
        took = duration(check.seconds)
        log = f" {marks.to} {check.log}" if check.log else ""
        how = took if check.passed else f"{how_it_failed(check)}, {took}{log}"
        checks.append(signed(check.passed, f"{check.name}  {how}"))
    files = []
    for file in iteration.files or []:
        lines = "binary" if file.added is None else f"+{file.added} -{file.deleted}"
        files.append(f"{file.status} {short(file.path, 300)} {lines}")
    refusals = [f"{refusal.claim} refused by {refusal.gate}: {refusal.reason}" for refusal in iteration.refused]
    reviews = [f"{by} approved" if passed else f"{by} did not approve: {why}" for by, passed, why in iteration.reviews]
    details = [
        ("You said", "\n".join(iteration.told)),
        ("Agent", iteration.agent if iteration.agent != short(history.agent, 80) else ""),
        ("Answer", iteration.answer),
        ("Ended by ralph", iteration.ended_by.replace("-", " ")),
        ("Checks", few_lines(checks)),
        ("Exams", "\n".join(signed(passed, name) for name, passed in iteration.exams)),
        ("Claim refused", few_lines(refusals)),
        ("Progress", progress_words(iteration, history)),
        ("Reviews", "\n".join(reviews)),
        ("Restored", ", ".join(iteration.restored)),
        ("Source control", "\n".join(signed(ok, f"{task} {detail}") for task, ok, detail in iteration.scm)),
        ("Files", few_lines(files)),
        ("Handed over", hand_over_words(iteration.hand_over) if iteration.hand_over else ""),
    ]
    return [(name, text) for name, text in details if text]


def few_lines(lines: Sequence[str], most: int = 12) -> str:
    return "\n".join([*lines[:most], *([f"and {len(lines) - most} more"] if len(lines) > most else [])])


TITLES = ("RUN", "STATE", "ITERATION", "CHECKS", "COST", "AGE", "WORKSPACE")


def run_list(runs: Sequence[Now], style: Style, columns: int, now: float, home: str = "") -> list[str]:
    """Return the lines of `ralph ps`, at most `columns` wide (0: no limit): a row of facts for each run, and below it
    its activity, question or result.
    """
    columns = columns or sys.maxsize
    rows = [TITLES, *(_facts(run, home) for run in runs)]
    sizes = [max(width(row[at]) for row in rows) for at in range(len(TITLES) - 1)]
    lines = [style.paint("dim", _row(TITLES, sizes, columns))]
    indent = " " * (sizes[0] + len(_GAP))
    for run, row in zip(runs, rows[1:], strict=True):
        line = _row(row, sizes, columns)
        place = sizes[0] + len(_GAP)
        end = place + len(run.label)
        lines.append(line[:place] + style.paint(state_of(run.label).color, line[place:end]) + line[end:])
        lines += [style.paint("dim", cut(indent + text, columns)) for text in _remarks(run, now)]
    return lines


def _facts(run: Now, home: str) -> tuple[str, ...]:
    return (
        run.run,
        run.label,
        run.progress(),
        "{}/{}".format(*run.check_counts) if run.check_counts else "-",
        "-" if run.cost_usd is None else money(run.cost_usd),
        duration(round(run.age_s)),
        from_home(one_line(clean(run.workspace), 500), home),
    )


def _remarks(run: Now, now: float) -> list[str]:
    """Return its activity, its questions, and the contents of its mailbox."""
    remarks = [short(run.goal, 100)] if run.goal else []
    remarks += [f"task {run.backlog_task} of work {run.work}"] if run.backlog_task else []
    if not run.alive:
        remarks.append(ending_reason(run) or ("resume it with `ralph resume`" if run.state == "killed" else ""))
    elif run.until:
        seconds = run.until - now
        remarks.append(f"{run.reason} until {moment(run.until, seconds)}" if seconds > 0 else run.reason)
    elif run.state == "paused":
        remarks.append(f"for {duration(round(now - run.since))}; resume it with `ralph resume`")
    elif run.doing and not run.held:
        took = now - run.since
        remarks.append(run.doing + (f" {duration(round(took))}" if took >= 1 else ""))
    if run.alive:
        remarks += [f"asks: {question}" for question in run.questions]
        remarks += ["pauses after this turn"] if run.pausing and run.state not in ("paused", "stopping") else []
        remarks += [f"{plural(run.notes, 'note')} for the next prompt"] if run.notes else []
    return [one_line(clean(text), 300) for text in remarks if text]


def _row(cells: Sequence[str], sizes: list[int], columns: int) -> str:
    padded = [_pad(cell, size) for cell, size in zip(cells, sizes, strict=False)]
    return cut(_GAP.join([*padded, cells[-1]]).rstrip(), columns)
