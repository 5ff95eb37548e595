"""The parts of a report: iterations, checks, attempts, refusals, questions, files, evidence, and what exams printed."""

from collections.abc import Sequence
from itertools import groupby

from msgspec import Struct

from ralph.core.gains import describe_end, describe_start, format_value
from ralph.core.measuring import Metric, run_to_run_difference
from ralph.core.model import FileChange
from ralph.core.text import clean, short
from ralph.history.evidence import Evidence, PatchedFile
from ralph.history.run_history import CheckResult, PastIteration, RunHistory
from ralph.history.states import RESULT_TONES
from ralph.show.plots import Html, element, joined
from ralph.show.summary import (
    MAX_EXAM_TEXT,
    Column,
    attempt_columns,
    exam_words,
    iteration_columns,
    iteration_details,
    refusal_columns,
    share_of_checks,
)
from ralph.show.words import (
    duration,
    happened,
    how_it_failed,
    nickname,
    proof_sentence,
    sentence_case,
)
from ralph.store.folder import ExamOutput

MAX_FILES = 300
MAX_CELLS, MAX_ROWS = 60, 30  # of the score
MAX_OPEN_TAILS = 3
_STATUS = {"A": "new", "D": "deleted", "M": "changed", "T": "changed type"}
_PATCH_TONES = {"+": "add", "-": "del", "@": "hunk"}


def table(columns: Sequence[Column], has_total: bool = False) -> Html:
    columns = [column for column in columns if any(column.cells)]
    heads = [element(f"th{column.kind}", column.title, scope="col") for column in columns]
    cells = [[element(f"td{column.kind}", cell) for cell in column.cells] for column in columns]
    rows = [element("tr", row) for row in zip(*cells, strict=True)]
    total = element("tr", [element(f"td{column.kind}", column.total) for column in columns])
    inner = [element("thead", element("tr", heads)), element("tbody", rows)]
    inner += [element("tfoot", total)] if has_total else []
    return element("div.card.scroll", element("table", inner), tabindex="0")


def proof(history: RunHistory) -> Html | None:
    """Return what `--prove` found, with the untested parts."""
    if history.proof is None:
        return None
    parts = history.proof.untested
    columns = [
        Column("Untested part", [short(part.place, 200) for part in parts], kind=".wrap"),
        Column("It adds", [short(part.line, 200) for part in parts], kind=".wrap"),
    ]
    sentence = element("p.facts", sentence_case(proof_sentence(history.proof)))
    return joined(sentence, table(columns) if parts else None)


def iterations(history: RunHistory, anchor: str) -> Html | None:
    """Return a table with a row per iteration: its checks, cost, time and so on. If the run optimises a number, the
    rows are attempts: what each tried, and its result. `anchor` is that of `number_column`.
    """
    past = history.iterations
    if not past:
        return None
    if history.first_numbers:
        marks = [mark("good", "✓", "kept") if iteration.is_kept else mark("bad", "✗", "dropped") for iteration in past]
        facts = [Column("", marks, kind=".cell"), *attempt_columns(past, history)]
    else:
        shares = Column("Checks", [share_of_checks(iteration) for iteration in past], kind=".num")
        facts = [shares, *iteration_columns(past, history)]
    return table([number_column(past, anchor), *facts], has_total=len(past) > 1)


def number_column(past: Sequence[PastIteration], anchor: str) -> Column:
    """Return the numbers of iterations, with links to the elements whose ids are `anchor` and the number."""
    return Column(
        "#",
        [element("a", str(iteration.number), href=f"#{anchor}{iteration.number}") for iteration in past],
        kind=".num",
    )


def _check_mark(check: CheckResult) -> Html:
    sentence = f"{'passed' if check.passed else how_it_failed(check)}, {duration(check.seconds)}"
    return mark("good", "✓", sentence) if check.passed else mark("bad", "✗", sentence)


def score(history: RunHistory, anchor: str) -> Html | None:
    """Return a table with a column per iteration and a row per check, for the latest iterations.

    The number of an iteration links to the element with the id `anchor` and that number.
    """
    past = history.iterations[-MAX_CELLS:]
    if not past:
        return None
    is_running = not past[-1].is_whole and not history.outcome
    links = number_column(past, anchor).cells
    heads = [element("th", link, scope="col") for link in links[:-1]]
    heads.append(element("th", links[-1], scope="col", class_="current" if is_running else None))
    rows = [element("tr", element("th.soft", "Iteration", scope="row"), heads)]
    marks = [{check.name: _check_mark(check) for check in iteration.checks} for iteration in past]
    for name in list(dict.fromkeys((*history.check_names, *history.checked)))[:MAX_ROWS]:
        head = element("th", element("code", short(name, 60)), scope="row", title=name)
        rows.append(element("tr", head, [element("td", of.get(name)) for of in marks]))
    caption = element("caption.hidden", "Checks of each iteration")
    return element("table.score", caption, element("tbody", rows))


def mark(tone: str, sign: str, meaning: str) -> Html:
    return element(f"span.mark.{tone}", sign, title=meaning, role="img", aria_label=meaning)


def refusals(history: RunHistory) -> Html | None:
    return table(refusal_columns(history)) if history.refused_claims else None


def questions(history: RunHistory) -> Html | None:
    columns = [
        Column("The agent asked", [question.text for question in history.questions], kind=".wrap"),
        Column("Answer", [question.answer or "not answered" for question in history.questions], kind=".wrap"),
    ]
    return table(columns) if history.questions else None


def files(history: RunHistory) -> Html | None:
    """Return the files that the run changed."""
    if not history.files:
        return None
    listed_files = history.files[:MAX_FILES]
    columns = [
        Column("File", [element("span.mono", file.path) for file in listed_files], "in all", ".wide"),
        Column("", [_STATUS.get(file.status, file.status) for file in listed_files]),
        Column("Lines", [plus_minus(file.added, file.deleted) for file in listed_files], sums(history.files), ".num"),
    ]
    more = len(history.files) - len(listed_files)
    note = element("p.soft", f"and {more} more") if more else None
    return joined(table(columns, has_total=len(listed_files) > 1), note)


def plus_minus(added: int | None, deleted: int | None) -> Html | str:
    """Return how many lines were added and deleted; `binary` if that is unknown."""
    if added is None:
        return "binary"
    return joined(element("span.plus", f"+{added}"), " ", element("span.minus", f"−{deleted}"))


def sums(changed: Sequence[FileChange]) -> str:
    return f"+{sum(file.added or 0 for file in changed)} −{sum(file.deleted or 0 for file in changed)}"


def result(iteration: PastIteration) -> Html:
    """Return the result of an iteration as a badge."""
    tone = RESULT_TONES[iteration.result]
    return element(f"span.badge.{'calm' if tone == 'waiting' else tone}", happened(iteration))


def details(history: RunHistory, iteration: PastIteration, evidence: Evidence | None = None) -> Html:
    """Return everything about one iteration, failed checks first. It is collapsed on screens and open on paper."""
    summary = element("summary", element("b", f"Iteration {iteration.number} "), result(iteration))
    stored = evidence or Evidence()
    tails = [(name, text) for name, text in stored.tails.items() if text]
    folds = [fold(f"✗ {name}", element("pre", text), is_open=len(tails) <= MAX_OPEN_TAILS) for name, text in tails]
    if stored.patch:
        folds.append(patch_details(stored, f"ralph diff {nickname(history.run)} {iteration.number}"))
    if stored.prompt:
        folds.append(fold("The prompt", element("pre", stored.prompt)))
    folded = element("div.evidence", folds) if evidence else None
    inside = element("div.inside", particulars(iteration, history), folded)
    return element("details.card", summary, inside, id=f"{history.run}-{iteration.number}")


def patch_details(evidence: Evidence, command: str) -> Html:
    """Return the changes, collapsed. If they were cut, `command` shows all of them."""
    files = evidence.patch
    added, deleted = sum(file.added for file in files), sum(file.deleted for file in files)
    more = element("p.soft", "There is more: ", element("code", command)) if evidence.patch_is_cut else None
    patches = [[element("p.path", element("code", file.path)), patch_lines(file)] for file in files]
    size = "the beginning" if evidence.patch_is_cut else f"+{added} −{deleted}"
    return fold(f"Changes, {size}", joined(patches, more))


def fold(title: str, body: Html, is_open: bool = False) -> Html:
    return element("details", element("summary", title), body, open=is_open)


def patch_lines(file: PatchedFile) -> Html:
    """Return the lines of a patch. Consecutive lines of one kind share an element, because there are many lines."""
    pieces = [
        element("span", "".join(f"{line}\n" for line in lines), class_=tone)
        for tone, lines in groupby(file.lines, key=lambda line: _PATCH_TONES.get(line[:1]))
    ]
    return element("pre.patch", pieces, tabindex="0", role="group", aria_label=f"Changes in {file.path}")


def particulars(iteration: PastIteration, history: RunHistory) -> Html:
    """Return the facts of an iteration, such as its checks and why its claim was refused."""
    details = iteration_details(iteration, history)
    return element("dl", [joined(element("dt", name), element("dd", text)) for name, text in details])


def exams(outputs: Sequence[ExamOutput]) -> Html | None:
    """Return the output of exams, for the person only: in the workspace the agent could read it."""
    if not outputs:
        return None
    cards = [
        element(
            "details",
            element("summary", ": ".join(exam_words(output))),
            element("pre", clean(output.text(MAX_EXAM_TEXT)) or "It printed nothing.", tabindex="0"),
            open=not output.passed and output is outputs[-1],
        )
        for output in outputs
    ]
    return element("section.card#exams", element("h2", "Exams, which the agent doesn't see"), cards)


STAIRS_WIDTH, STAIRS_HEIGHT = 960.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 86.0, 20.0, 16.0, 34.0
CROSS = 4.5  # half the width of a dropped attempt's mark
MARGIN = 0.12  # of the range of values, above and below
MAX_LABELS = 24


class Stair(Struct, frozen=True):
    """One attempt: the best value before and after it, and its own one; None if it has no number."""

    attempt: PastIteration
    before: float
    value: float | None
    after: float


def steps_of(history: RunHistory) -> list[Stair]:
    """Return the attempts with their values, computed by adding up the measured gains: the measured values drift when
    the machine gets busier.
    """
    start = history.first_numbers
    if start is None:
        return []
    best, sign, steps = start.value, 1 if start.metric.maximize else -1, []
    for iteration in history.whole:
        has_number = iteration.measured is not None and iteration.measured.after is not None
        value = best + sign * iteration.measured.gain * abs(best) if has_number and iteration.measured else None
        after = value if iteration.is_kept and value is not None else best
        steps.append(Stair(iteration, best, value, after))
        best = after
    return steps


def staircase(history: RunHistory) -> Html | None:
    """Draw the best value over the attempts, with dropped attempts as crosses and the noise as a band."""
    start, steps = history.first_numbers, steps_of(history)
    if start is None or not steps:
        return None
    metric, noise = start.metric, run_to_run_difference(start.values)
    ends = f"from {format_value(start.value, metric)} to {format_value(steps[-1].after, metric)}"
    title = f"{ends}, attempt by attempt"
    tones = [("good", "kept"), ("bad", "dropped"), *([("noise", "noise")] if noise else [])]
    legend = element("p.legend", [element("span", element(f"i.f-{tone}"), name) for tone, name in tones])
    sentences = [f"metric: {describe_start(metric, start.values, start.noise)}"]
    sentences += [describe_end(history.end_numbers, metric)] if history.end_numbers else []
    svg = element(
        "svg",
        element("title", title),
        _draw_stairs(steps, metric, noise),
        viewBox=f"0 0 {STAIRS_WIDTH:g} {STAIRS_HEIGHT:g}",
        role="img",
        aria_label=title,
    )
    plot = element("div.scroll", svg, tabindex="0", role="region", aria_label=title)
    return element("div.card", legend, plot, element("p.facts", f"{sentence_case('; '.join(sentences))}."))


def _draw_stairs(steps: Sequence[Stair], metric: Metric, noise: float) -> list[Html]:
    values = [value for step in steps for value in (step.before, step.value, step.after) if value is not None]
    low, high = min(values), max(values)
    room = (high - low) * MARGIN or abs(high) * MARGIN or 1.0
    low, high = low - room if low < 0 else max(0.0, low - room), high + room

    def x(attempt: float) -> float:
        return LEFT + (STAIRS_WIDTH - LEFT - RIGHT) * attempt / len(steps)

    def y(value: float) -> float:
        share = (value - low) / (high - low)
        return STAIRS_HEIGHT - BOTTOM - min(max(share, 0.0), 1.0) * (STAIRS_HEIGHT - TOP - BOTTOM)

    shapes: list[Html] = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = low + share * (high - low)
        height, label = f"{y(value):.1f}", format_value(float(f"{value:.3g}"), metric)
        shapes.append(element("line.grid-line", x1=LEFT, x2=STAIRS_WIDTH - RIGHT, y1=height, y2=height))
        shapes.append(element("text", label, x=LEFT - 6, y=f"{y(value) + 4:.1f}", text_anchor="end"))
    for at in range(1, len(steps) + 1, -(-len(steps) // MAX_LABELS)):
        below = STAIRS_HEIGHT - BOTTOM + 16
        shapes.append(element("text", str(at), x=f"{x(at - 0.5):.1f}", y=below, text_anchor="middle"))
    corners: list[tuple[float, float]] = []  # between which the best value is drawn: it changes in the middle
    for at, step in enumerate(steps):
        corners += [(at, step.before), (at + 0.5, step.before), (at + 0.5, step.after), (at + 1, step.after)]
    upper = [f"{x(at):.1f},{y(value * (1 + noise)):.1f}" for at, value in corners]
    lower = [f"{x(at):.1f},{y(value * (1 - noise)):.1f}" for at, value in corners]
    shapes.append(element("path.band", d=f"M{' L'.join([*upper, *reversed(lower)])} Z"))
    shapes.append(element("path.stairs", d=f"M{' L'.join(f'{x(at):.1f},{y(value):.1f}' for at, value in corners)}"))
    for at, step in enumerate(steps, 1):
        across, down = x(at - 0.5), STAIRS_HEIGHT - BOTTOM if step.value is None else y(step.value)
        sign = element("path.cross", d=f"M{across - CROSS:.1f},{down - CROSS:.1f} l9,9 m0,-9 l-9,9")
        if step.attempt.is_kept:
            sign = element("circle.f-good", cx=f"{across:.1f}", cy=f"{down:.1f}", r="4.5")
        shapes.append(element("g", element("title", f"attempt {at}: {step.attempt.gain}"), sign))
    return shapes
