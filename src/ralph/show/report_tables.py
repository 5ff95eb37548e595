"""The parts of a report: iterations, checks, refusals, questions, files, and the evidence of each iteration."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from msgspec.structs import replace

from ralph.core.model import FileChange
from ralph.core.text import plural, short
from ralph.history.evidence import Evidence, PatchedFile, ToolCall
from ralph.history.run_history import CheckResult, PastIteration, RunHistory, Span
from ralph.history.states import RESULTS
from ralph.show import plots
from ralph.show.columns import Column, iteration_columns, share_of_checks
from ralph.show.plots import Html, Period, element, joined
from ralph.show.words import (
    describe_review,
    duration,
    hand_over_words,
    happened,
    how_it_failed,
    nickname,
    progress_words,
    proof_sentence,
    sentence_case,
)

MAX_FILES = 300
MAX_COLUMNS = 6
"""The most checks that get a column each in the table of iterations; more get their own table."""
MAX_CHECKS = 12  # of an iteration
MAX_CELLS, MAX_ROWS = 60, 30  # of the score
MAX_OPEN_TAILS = 3
_STATUS = {"A": "new", "D": "deleted", "M": "changed", "T": "changed type"}


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
    sentence = element("p.facts", sentence_case(proof_sentence(history.proof)))
    parts = history.proof.untested
    if not parts:
        return sentence
    columns = [
        Column("Untested part", [short(part.place, 200) for part in parts], kind=".wrap"),
        Column("It adds", [short(part.line, 200) for part in parts], kind=".wrap"),
    ]
    return joined(sentence, table(columns))


LANES = {"turn": "agent", "check": "checks", "measurement": "measuring", "wait": "waiting", "pause": "paused"}


def timeline(history: RunHistory) -> Html | None:
    """Draw when the agent, the checks and the waits took place: a lane for each."""
    kinds = [kind for kind in LANES if any(span.kind == kind for span in history.spans)]
    if not kinds:
        return None
    ended = max(history.ended, *(span.ended for span in history.spans))
    least = (ended - history.began) / plots.LANE_WIDTH
    lanes = {LANES[kind]: _periods([one for one in history.spans if one.kind == kind], least) for kind in kinds}
    return element("div.card", plots.timeline(lanes, history.began, ended))


def _periods(spans: Sequence[Span], least: float) -> list[Period]:
    """Return the bars of a lane. Bars of one iteration that are less than `least` seconds apart are joined."""
    merged: list[Span] = []
    for span in sorted(spans, key=lambda one: one.began):
        last = merged[-1] if merged else None
        if last and last.iteration == span.iteration and span.began - last.ended < least:
            what = last.what if last.what == span.what else "several"
            merged[-1] = replace(last, what=what, ended=max(last.ended, span.ended))
        else:
            merged.append(span)
    titles = (f"iteration {one.iteration}, {one.what}: {duration(one.ended - one.began)}" for one in merged)
    return [Period(one.kind, title, one.began, one.ended) for one, title in zip(merged, titles, strict=True)]


def iterations(history: RunHistory) -> Html | None:
    """Return a table with a row per iteration and a column per check, cost, time and so on."""
    past, names = history.iterations, history.checked
    if not past:
        return None
    checks = [Column("Checks", [_passing_cell(one) for one in past], kind=".num")]
    if len(names) <= MAX_COLUMNS:
        marks = [_verdicts(one) for one in past]
        checks = [Column(name, [of.get(name, "") for of in marks], kind=".cell.check") for name in names]
    return table([number_column(past, f"{history.run}-"), *checks, *iteration_columns(past, history)], len(past) > 1)


def number_column(past: Sequence[PastIteration], anchor: str) -> Column:
    """Return the numbers of iterations, with links to the elements whose ids are `anchor` and the number."""
    return Column("#", [element("a", str(one.number), href=f"#{anchor}{one.number}") for one in past], kind=".num")


def _verdicts(one: PastIteration) -> dict[str, Html]:
    """Return a mark per check, by name."""
    marks: dict[str, Html] = {}
    for check in one.checks:
        said = f"{'passed' if check.passed else how_it_failed(check)}, {duration(check.seconds)}"
        shown = mark("good", "✓", said) if check.passed else mark("bad", "✗", said)
        marks[check.name] = joined(marks.get(check.name), shown)
    return marks


def _passing_cell(one: PastIteration) -> Html | str:
    return element(f"span.mark.{'good' if one.is_green else 'bad'}", share_of_checks(one)) if one.checks else ""


def score(history: RunHistory, anchor: str) -> Html | None:
    """Return a table with a column per iteration and a row per check, for the latest iterations.

    The number of an iteration links to the element with the id `anchor` and that number.
    """
    past = history.iterations[-MAX_CELLS:]
    if not past:
        return None
    links = [element("a", str(one.number), href=f"#{anchor}{one.number}") for one in past]
    is_running = not past[-1].is_whole and not history.outcome
    heads = [element("th", link, scope="col") for link in links[:-1]]
    heads.append(element("th", links[-1], scope="col", class_="current" if is_running else None))
    rows = [element("tr", element("th.soft", "Iteration", scope="row"), heads)]
    marks = [_verdicts(one) for one in past]
    for name in list(dict.fromkeys((*history.check_names, *history.checked)))[:MAX_ROWS]:
        rows.append(_score_row(element("code", short(name, 60)), [of.get(name) for of in marks], name))
    if any(one.step for one in past):
        rows.append(_score_row("Progress", [_progress_mark(one, history) for one in past]))
    if any(one.refused or one.is_accepted for one in past):
        rows.append(_score_row("Claims done", [_claim_mark(one) for one in past]))
    caption = element("caption.hidden", "Checks, progress and claims of each iteration")
    return element("table.score", caption, element("tbody", rows))


def _score_row(name: object, marks: Sequence[Html | None], title: str = "") -> Html:
    class_ = None if title else "soft"
    head = element("th", name, scope="row", title=title or None, class_=class_)
    return element("tr", head, [element("td", one) for one in marks])


def mark(tone: str, sign: str, meaning: str) -> Html:
    return element(f"span.mark.{tone}", sign, title=meaning, role="img", aria_label=meaning)


def _progress_mark(one: PastIteration, history: RunHistory) -> Html | None:
    said = progress_words(one, history)
    if not said or one.step is None:
        return None
    sign = "★" if one.number == history.best else "▲" if one.step.gain else "–"
    return mark("good" if one.step.gain else "calm", sign, said)


def _claim_mark(one: PastIteration) -> Html | None:
    if one.refused:
        return mark("bad", "⊘", f"refused: {one.refused[0].reason}")
    return mark("good", "✓", "accepted") if one.is_accepted else None


def refusals(history: RunHistory) -> Html | None:
    """Return the refused claims; several gates may object to one claim."""
    rows = [one for one in history.iterations if one.refused]
    columns = [
        Column("Iteration", [str(one.number) for one in rows], kind=".num"),
        Column("The agent claimed", [element("code", one.refused[0].claim) for one in rows]),
        Column("Refused by", [", ".join(dict.fromkeys(refused.gate for refused in one.refused)) for one in rows]),
        Column("Because", [_few([refused.reason for refused in one.refused], 3) for one in rows], kind=".wrap.lines"),
    ]
    return table(columns) if rows else None


def _few(lines: Sequence[str], most: int) -> str:
    return "\n".join([*lines[:most], *([f"and {len(lines) - most} more"] if len(lines) > most else [])])


def talk(history: RunHistory) -> Html | None:
    """Return questions, answers and notes."""
    asked = [("agent", question.text) for question in history.questions]
    answers = [question.answer or "not answered" for question in history.questions]
    answered = {*answers}
    told = [(one.number, text) for one in history.iterations for text in one.told if text not in answered]
    columns = [
        Column("Who", [*(who for who, _ in asked), *(f"you, iteration {number}" for number, _ in told)]),
        Column("What", [*(text for _, text in asked), *(text for _, text in told)], kind=".wrap"),
        Column("Answer", [*answers, *("" for _ in told)], kind=".wrap"),
    ]
    return table(columns) if asked or told else None


def files(history: RunHistory) -> Html | None:
    """Return the files that the run changed."""
    if not history.files:
        return None
    shown = history.files[:MAX_FILES]
    columns = [
        Column("File", [element("span.mono", one.path) for one in shown], "in all", ".wide"),
        Column("", [_STATUS.get(one.status, one.status) for one in shown]),
        Column("Lines", [lines_of(one) for one in shown], sums(history.files), ".num"),
    ]
    more = len(history.files) - len(shown)
    note = element("p.soft", f"and {more} more") if more else None
    return joined(table(columns, has_total=len(shown) > 1), note)


def lines_of(one: FileChange) -> Html | str:
    """Return how many lines of a file were added and deleted."""
    if one.added is None or one.deleted is None:
        return "binary"
    return plus_minus(one.added, one.deleted)


def plus_minus(added: int, deleted: int) -> Html:
    return joined(element("span.plus", f"+{added}"), " ", element("span.minus", f"−{deleted}"))


def sums(changed: Sequence[FileChange]) -> str:
    return f"+{sum(one.added or 0 for one in changed)} −{sum(one.deleted or 0 for one in changed)}"


def result(one: PastIteration) -> Html:
    """Return the result of an iteration as a badge."""
    tone = RESULTS[one.result].tone
    tone = "calm" if tone == "waiting" else tone
    return element(f"span.badge.{tone}", happened(one))


def details(history: RunHistory, one: PastIteration, evidence: Evidence | None = None) -> Html:
    """Return everything about one iteration, failed checks first. It is collapsed on screens and open on paper."""
    summary = element("summary", element("b", f"Iteration {one.number} "), result(one))
    found = evidence or Evidence()
    tails = [(name, text) for name, text in found.tails.items() if text]
    folds = [fold(f"✗ {name}", element("pre", text), is_open=len(tails) <= MAX_OPEN_TAILS) for name, text in tails]
    if found.patch:
        folds.append(patch_details(found, f"ralph diff {nickname(history.run)} {one.number}"))
    if found.calls:
        number = len(found.calls) + found.calls_left_out
        more = element("li.soft", f"and {found.calls_left_out} more") if found.calls_left_out else None
        root = f"{history.worktree or history.workspace}/"
        listed = element("ul.calls", [_call(call, root) for call in found.calls], more)
        folds.append(fold(plural(number, "tool call").capitalize(), listed))
    if found.prompt:
        folds.append(_prompt(found.prompt))
    shown = element("div.evidence", folds) if evidence else None
    inside = element("div.inside", particulars(one, history), shown)
    return element("details.card", summary, inside, id=f"{history.run}-{one.number}")


def patch_details(evidence: Evidence, command: str) -> Html:
    """Return the changes, collapsed. If they were cut, `command` shows all of them."""
    files = evidence.patch
    added, deleted = sum(file.added for file in files), sum(file.deleted for file in files)
    more = element("p.soft", "There is more: ", element("code", command)) if evidence.patch_is_cut else None
    patches = [[element("p.path", element("code", file.path)), patch_lines(file)] for file in files]
    size = "the beginning" if evidence.patch_is_cut else f"+{added} −{deleted}"
    return fold(f"Changes, {size}", joined(patches, more))


@lru_cache(maxsize=1)  # most prompts are the same
def _prompt(prompt: str) -> Html:
    return fold("The prompt", element("pre", prompt))


def fold(title: str, body: Html, is_open: bool = False) -> Html:
    return element("details", element("summary", title), body, open=is_open)


LINE_TONES = {"+": "add", "-": "del", "@": "hunk"}


def patch_lines(file: PatchedFile) -> Html:
    """Return the lines of a patch. Consecutive lines of one kind share an element, because there are many lines."""
    pieces = [
        element("span", "".join(f"{line}\n" for line in lines), class_=tone)
        for tone, lines in groupby(file.lines, key=lambda line: LINE_TONES.get(line[:1]))
    ]
    return element("pre.patch", pieces, tabindex="0", role="group", aria_label=f"Changes in {file.path}")


def _call(call: ToolCall, root: str) -> Html:
    given = call.given.replace(root, "") if root != "/" else call.given
    said = "not finished" if call.ok is None else plural(call.lines, "line") if call.lines else ""
    mark = element("b.minus", "✗ " if call.ok is False else "") if call.ok is False else None
    return element(
        "li", mark, element("code", f"{call.name}({given})" if given else call.name), " ", element("span.soft", said)
    )


def particulars(one: PastIteration, history: RunHistory) -> Html:
    """Return the facts of an iteration, such as its checks and why its claim was refused."""
    changed = one.files or []
    names = ", ".join(file.path for file in changed[:20]) + (" …" if len(changed) > 20 else "")
    checks = sorted(one.checks, key=lambda check: check.passed)  # failed ones first
    said = [
        ("You said", "\n".join(one.told)),
        ("Agent", one.agent),
        ("Answer", one.answer),
        ("Ended by ralph", one.ended_by.replace("-", " ")),
        ("Tool errors", str(one.tool_errors or "")),
        ("Not counted", f"{plural(one.uncounted, 'turn')}: a limit or a passing fault" if one.uncounted else ""),
        ("Checks", _few([_check_line(check) for check in checks], MAX_CHECKS)),
        ("Claim refused", _few([f"{refusal.claim}: {refusal.reason}" for refusal in one.refused], 3)),
        ("Progress", progress_words(one, history)),
        ("Reviews", "\n".join(map(describe_review, one.reviews))),
        ("Restored", ", ".join(one.restored)),
        ("Source control", "\n".join(f"{task} {'✓' if ok else '✗'} {detail}" for task, ok, detail in one.scm)),
        ("Files", f"{names} ({sums(changed)})" if changed else ""),
        ("Handed over", hand_over_words(one.hand_over) if one.hand_over else ""),
    ]
    return element("dl", [joined(element("dt", name), element("dd", text)) for name, text in said if text])


def _check_line(check: CheckResult) -> str:
    took = duration(check.seconds)
    if check.passed:
        return f"✓ {check.name}, {took}"
    return f"✗ {check.name} ({how_it_failed(check)}, {took}) {check.log}".rstrip()
