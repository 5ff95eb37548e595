"""The parts of a report: iterations and their checks, drawings, refusals, questions, files, and the evidence of each
iteration."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.model import FileChange
from ralph.core.text import plural, short
from ralph.history.evidence import Evidence, PatchedFile, ToolCall
from ralph.history.run_history import PastIteration, RunHistory, Span
from ralph.history.states import RESULTS
from ralph.show import plots
from ralph.show.plots import Html, Layer, Period, element, joined
from ralph.show.words import (
    MAX_NUMBER,
    cost,
    count,
    describe_review,
    duration,
    hand_over_words,
    happened,
    how_it_failed,
    money,
    nickname,
    progress_words,
    proof_sentence,
    sentence_case,
)

MAX_FILES = 300
MAX_COLUMNS = 6
"""The most checks that get a column each in the table of iterations; more get their own table."""
MAX_CELLS = 48
MAX_OPEN_TAILS = 3
_STATUS = {"A": "new", "D": "deleted", "M": "changed", "T": "changed type"}


class HtmlColumn(Struct):
    """`kind` is the CSS classes of its cells: .num, .cell, .wrap, .lesser (hidden on phones) or nothing."""

    title: str
    cells: Sequence[str]
    total: str = ""
    kind: str = ""


def table(columns: Sequence[HtmlColumn], has_total: bool = False) -> Html:
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
        HtmlColumn("Untested part", [short(part.place, 200) for part in parts], kind=".wrap"),
        HtmlColumn("It adds", [short(part.line, 200) for part in parts], kind=".wrap"),
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
    """Return the bars of a lane; those of one iteration with less than `least` seconds between them are joined."""
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
    past = history.iterations
    names = history.checked
    tools = sum(one.tool_calls or 0 for one in past)
    checked = [HtmlColumn("Checks", [_passing_cell(one) for one in past], kind=".num")]
    if len(names) <= MAX_COLUMNS:
        marks = [_verdicts(one) for one in past]
        checked = [HtmlColumn(name, [of.get(name, "") for of in marks], kind=".cell.check") for name in names]
    columns = [
        HtmlColumn(
            "#", [element("a", str(one.number), href=f"#{history.run}-{one.number}") for one in past], kind=".num"
        ),
        *checked,
        HtmlColumn(
            "Tools", ["" if one.tool_calls is None else str(one.tool_calls) for one in past], str(tools), ".num.lesser"
        ),
        HtmlColumn("Tokens", [_tokens(one.usage.tokens) for one in past], _tokens(history.usage.tokens), ".num.lesser"),
        HtmlColumn("Cost", [cost(one.usage.cost_usd) for one in past], cost(history.cost_usd), ".num"),
        HtmlColumn("Time", [duration(one.seconds) for one in past], duration(history.seconds), ".num"),
        HtmlColumn("Files", [_size(one.files) for one in past], _size(history.files), ".num.lesser"),
        HtmlColumn("What happened", [happened(one) for one in past], "in all", ".wrap"),
    ]
    if any(one.step for one in past):
        columns.insert(-1, HtmlColumn("Progress", [_progress(one, history) for one in past]))
    return table(columns, has_total=len(past) > 1) if past else None


def _progress(one: PastIteration, history: RunHistory) -> Html | str:
    said = progress_words(one, history)
    return joined(said, element("br"), hand_over_words(one.hand_over)) if one.hand_over else said


def _tokens(number: int) -> str:
    return count(number) if number else ""


def _size(changed: Sequence[FileChange] | None) -> str:
    return "" if changed is None else str(len(changed))


def _verdicts(one: PastIteration) -> dict[str, Html]:
    """Return a mark per check, by name."""
    marks: dict[str, Html] = {}
    for check in one.checks:
        tone, mark = ("good", "✓") if check.passed else ("bad", "✗")
        said = f"{'passed' if check.passed else how_it_failed(check)}, {duration(check.seconds)}"
        shown = element(f"span.mark.{tone}", mark, title=said)
        marks[check.name] = joined(marks.get(check.name), shown)
    return marks


def _passing_cell(one: PastIteration) -> Html | str:
    passed, tone = sum(check.passed for check in one.checks), "good" if one.is_green else "bad"
    return element(f"span.mark.{tone}", f"{passed}/{len(one.checks)}") if one.checks else ""


def checks(history: RunHistory) -> Html | None:
    """Return a row per check and a small cell per iteration, if there are many checks."""
    names = history.checked
    if len(names) <= MAX_COLUMNS:
        return None
    past = [one for one in history.iterations if one.checks][-MAX_CELLS:]
    marks = [_verdicts(one) for one in past]
    heads = [element("th.bit", str(one.number), scope="col") for one in past]
    rows = [
        element(
            "tr",
            element("th.name", element("span.clamp", name, title=name), scope="row"),
            [element("td.bit", of.get(name)) for of in marks],
        )
        for name in names
    ]
    top = element("thead", element("tr", element("th.name", "Check", scope="col"), heads))
    return element("div.card.scroll", element("table.bits", top, element("tbody", rows)), tabindex="0")


def drawings(history: RunHistory) -> Html | None:
    """Draw checks, cost, tokens and time per iteration, if there is more than one."""
    past = history.whole
    if len(past) < 2:
        return None
    labels, usages = [str(one.number) for one in past], [one.usage for one in past]
    checks = [
        Layer("passed", "good", [float(sum(check.passed for check in one.checks)) for one in past]),
        Layer("failed", "bad", [float(sum(not check.passed for check in one.checks)) for one in past]),
    ]
    tokens = [
        Layer("from cache", "cache", [usage.cache_read_tokens for usage in usages]),
        Layer("read", "in", [usage.input_tokens + usage.cache_write_tokens for usage in usages]),
        Layer("written", "out", [usage.output_tokens for usage in usages]),
    ]
    checking = [sum(check.seconds for check in one.checks) for one in past]
    working = [max(one.seconds - spent, 0.0) for one, spent in zip(past, checking, strict=True)]
    drawn = (
        _drawing("Checks", labels, checks, lambda value: f"{value:g}"),
        _drawing("Cost", labels, [Layer("cost", "turn", [usage.cost_usd or 0.0 for usage in usages])], money),
        _drawing("Tokens", labels, tokens, lambda value: count(round(value))),
        _drawing("Time", labels, [Layer("agent", "turn", working), Layer("checks", "check", checking)], duration),
    )
    shown = [one for one in drawn if one]
    return element("div.plots", shown) if shown else None


def _drawing(title: str, labels: list[str], layers: list[Layer], say: plots.Say) -> Html | None:
    if not any(value for layer in layers for value in layer.values):
        return None
    used = [
        Layer(layer.name, layer.tone, [max(0.0, min(float(MAX_NUMBER), value)) for value in layer.values])
        for layer in layers
        if any(layer.values)
    ]
    legend = plots.legend((layer.tone, layer.name) for layer in used) if len(used) > 1 else None
    return element(
        "div.card", legend, element("h3", title), plots.bars(f"{title} of each iteration", labels, used, say)
    )


def refusals(history: RunHistory) -> Html | None:
    """Return the refused claims; several gates may object to one claim."""
    rows = [one for one in history.iterations if one.refused]
    columns = [
        HtmlColumn("Iteration", [str(one.number) for one in rows], kind=".num"),
        HtmlColumn("The agent claimed", [element("code", one.refused[0].claim) for one in rows]),
        HtmlColumn("Refused by", [", ".join(dict.fromkeys(refused.gate for refused in one.refused)) for one in rows]),
        HtmlColumn(
            "Because", [_few([refused.reason for refused in one.refused], 3) for one in rows], kind=".wrap.lines"
        ),
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
        HtmlColumn("Who", [*(who for who, _ in asked), *(f"you, iteration {number}" for number, _ in told)]),
        HtmlColumn("What", [*(text for _, text in asked), *(text for _, text in told)], kind=".wrap"),
        HtmlColumn("Answer", [*answers, *("" for _ in told)], kind=".wrap"),
    ]
    return table(columns) if asked or told else None


def files(history: RunHistory) -> Html | None:
    """Return the files that the run changed."""
    if not history.files:
        return None
    shown = history.files[:MAX_FILES]
    columns = [
        HtmlColumn("File", [element("span.mono", one.path) for one in shown], "in all", ".wide"),
        HtmlColumn("", [_STATUS.get(one.status, one.status) for one in shown]),
        HtmlColumn("Lines", [lines_of(one) for one in shown], sums(history.files), ".num"),
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
    """Return everything about one iteration, collapsed on screens and open on paper; failed checks come first."""
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
    inside = element("div.inside", particulars(one), shown)
    return element("details.card", summary, inside, id=f"{history.run}-{one.number}")


def patch_details(evidence: Evidence, command: str) -> Html:
    """Return the changes, collapsed. `command` shows all of them, if they were cut."""
    files = evidence.patch
    added, deleted = sum(file.added for file in files), sum(file.deleted for file in files)
    more = element("p.soft", "There is more: ", element("code", command)) if evidence.patch_is_cut else None
    size = "the beginning" if evidence.patch_is_cut else f"+{added} −{deleted}"
    return fold(f"Changes, {size}", joined([_patch(file) for file in files], more))


@lru_cache(maxsize=1)  # most prompts are the same
def _prompt(prompt: str) -> Html:
    return fold("The prompt", element("pre", prompt))


def fold(title: str, body: Html, is_open: bool = False) -> Html:
    return element("details", element("summary", title), body, open=is_open)


LINE_TONES = {"+": "add", "-": "del", "@": "hunk"}


def _patch(file: PatchedFile) -> Html:
    """Return a patch. Consecutive lines of one kind share an element, because there are many lines."""
    pieces = [
        element("span", "".join(f"{line}\n" for line in lines), class_=tone)
        for tone, lines in groupby(file.lines, key=lambda line: LINE_TONES.get(line[:1]))
    ]
    return joined(element("p.path", element("code", file.path)), element("pre.patch", pieces))


def _call(call: ToolCall, root: str) -> Html:
    given = call.given.replace(root, "") if root != "/" else call.given
    said = "not finished" if call.ok is None else plural(call.lines, "line") if call.lines else ""
    mark = element("b.minus", "✗ " if call.ok is False else "") if call.ok is False else None
    return element(
        "li", mark, element("code", f"{call.name}({given})" if given else call.name), " ", element("span.soft", said)
    )


def particulars(one: PastIteration) -> Html:
    changed = one.files or []
    names = ", ".join(file.path for file in changed[:20]) + (" …" if len(changed) > 20 else "")
    red = [f"{check.name} ({how_it_failed(check)}) {check.log}".strip() for check in one.checks if not check.passed]
    said = [
        ("Agent", one.agent),
        ("Answer", one.answer),
        ("Ended by ralph", one.ended_by.replace("-", " ")),
        ("Tool errors", str(one.tool_errors or "")),
        ("Not counted", f"{plural(one.uncounted, 'turn')}: a limit or a passing fault" if one.uncounted else ""),
        ("Checks that failed", _few(red, 6)),
        ("Reviews", "\n".join(map(describe_review, one.reviews))),
        ("You said", "\n".join(one.told)),
        ("Restored", ", ".join(one.restored)),
        ("Source control", "\n".join(f"{task} {'✓' if ok else '✗'} {detail}" for task, ok, detail in one.scm)),
        ("Files", f"{names} ({sums(changed)})" if changed else ""),
    ]
    return element("dl", [joined(element("dt", name), element("dd", text)) for name, text in said if text])
