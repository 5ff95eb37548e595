"""What stands in a report, table by table? Iterations and their checks, drawings, refusals, talk, files, details."""

from collections.abc import Sequence

from msgspec import Struct

from ralph.core.model import FileChange
from ralph.history.run_history import CheckResult, PastIteration, RunHistory
from ralph.show import plots
from ralph.show.plots import Html, Layer, element, joined
from ralph.show.words import count, duration, happened, how_it_failed, money, plural

MOST_FILES = 300
MOST_CHECKS = 12
_STATUS = {"A": "new", "D": "deleted", "M": "changed", "T": "changed type"}


class HtmlColumn(Struct):
    """`kind` is the class of its cells: num, cell, wrap or nothing."""

    title: str
    cells: Sequence[str]
    total: str = ""
    kind: str = ""

    @property
    def is_empty(self) -> bool:
        return not any(self.cells)


def table(columns: Sequence[HtmlColumn], has_total: bool = False) -> Html:
    columns = [column for column in columns if not column.is_empty]
    heads = [element("th", column.title, class_=column.kind or None, scope="col") for column in columns]
    cells = [[element("td", cell, class_=column.kind or None) for cell in column.cells] for column in columns]
    rows = [element("tr", row) for row in zip(*cells, strict=True)]
    total = element("tr", [element("td", column.total, class_=column.kind or None) for column in columns])
    inner = [element("thead", element("tr", heads)), element("tbody", rows)]
    inner += [element("tfoot", total)] if has_total else []
    return element("div", element("table", inner), class_="card scroll", tabindex="0")


def timeline(history: RunHistory) -> Html | None:
    if not history.spans:
        return None
    kinds = {"turn": "agent", "check": "checks", "wait": "waiting", "pause": "paused"}
    used = {span.kind for span in history.spans}
    legend = _legend([(kind, name) for kind, name in kinds.items() if kind in used])
    return element("div", legend, plots.timeline(history), class_="card")


def _legend(named: Sequence[tuple[str, str]]) -> Html:
    return element("span", [joined(element("i", class_=f"f-{tone}"), name) for tone, name in named], class_="legend")


def iterations(history: RunHistory) -> Html | None:
    """The matrix: a row for each iteration, a column for each check, and what it took."""
    past = history.iterations
    names = list(dict.fromkeys(check.name for one in past for check in one.checks))
    tools = sum(one.tool_calls or 0 for one in past)
    columns = [
        HtmlColumn(
            "#", [element("a", str(one.number), href=f"#{history.run}-{one.number}") for one in past], kind="num"
        ),
        *(HtmlColumn(name, [_verdict(name, one) for one in past], kind="cell check") for name in names[:MOST_CHECKS]),
        HtmlColumn("More checks", [_others(one, names) for one in past], kind="cell"),
        HtmlColumn("Tools", ["" if one.tool_calls is None else str(one.tool_calls) for one in past], str(tools), "num"),
        HtmlColumn("Tokens", [_tokens(one.usage.tokens) for one in past], _tokens(history.usage.tokens), "num"),
        HtmlColumn("Cost", [cost(one.usage.cost_usd) for one in past], cost(history.cost_usd), "num"),
        HtmlColumn("Time", [duration(one.seconds) for one in past], duration(history.seconds), "num"),
        HtmlColumn("Files", [_size(one.files) for one in past], _size(history.files), "num"),
        HtmlColumn("What happened", [happened(one) for one in past], "in all", "wrap"),
    ]
    return table(columns, has_total=len(past) > 1) if past else None


def _tokens(number: int) -> str:
    return count(number) if number else ""


def _size(changed: Sequence[FileChange] | None) -> str:
    return "" if changed is None else str(len(changed))


def _verdict(name: str, one: PastIteration) -> Html:
    found = [check for check in one.checks if check.name == name]
    return joined(*(_mark(check) for check in found))


def _mark(check: CheckResult) -> Html:
    tone, mark = ("good", "✓") if check.passed else ("bad", "✗")
    said = "passed" if check.passed else how_it_failed(check)
    return element("span", mark, class_=f"mark {tone}", title=f"{said}, {duration(check.seconds)}")


def _others(one: PastIteration, names: list[str]) -> str:
    rest = [check for check in one.checks if check.name in names[MOST_CHECKS:]]
    return f"{sum(check.passed for check in rest)}/{len(rest)}" if rest else ""


def drawings(history: RunHistory) -> Html | None:
    """Checks, cost and tokens of each iteration, where there is more than one to compare."""
    past = [one for one in history.iterations if one.is_whole]
    if len(past) < 2:
        return None
    labels = [str(one.number) for one in past]
    drawn = [_drawing("Checks", labels, _check_layers(past), lambda value: f"{value:g}")]
    drawn.append(_drawing("Cost", labels, [Layer("cost", "turn", [c.usage.cost_usd or 0.0 for c in past])], money))
    drawn.append(_drawing("Tokens", labels, _token_layers(past), lambda value: count(round(value))))
    drawn.append(_drawing("Time", labels, _time_layers(past), duration))
    shown = [one for one in drawn if one]
    return element("div", shown, class_="plots") if shown else None


def _drawing(title: str, labels: list[str], layers: list[Layer], say: plots.Say) -> Html | None:
    if not any(value for layer in layers for value in layer.values):
        return None
    used = [layer for layer in layers if any(layer.values)]
    legend = _legend([(layer.tone, layer.name) for layer in used]) if len(used) > 1 else None
    return element(
        "div", element("h3", title, legend), plots.bars(f"{title} of each iteration", labels, used, say), class_="card"
    )


def _check_layers(past: list[PastIteration]) -> list[Layer]:
    passed = [float(sum(check.passed for check in one.checks)) for one in past]
    failed = [float(sum(not check.passed for check in one.checks)) for one in past]
    return [Layer("passed", "good", passed), Layer("failed", "bad", failed)]


def _token_layers(past: list[PastIteration]) -> list[Layer]:
    usages = [one.usage for one in past]
    return [
        Layer("from cache", "cache", [float(usage.cache_read_tokens) for usage in usages]),
        Layer("read", "in", [float(usage.input_tokens + usage.cache_write_tokens) for usage in usages]),
        Layer("written", "out", [float(usage.output_tokens) for usage in usages]),
    ]


def _time_layers(past: list[PastIteration]) -> list[Layer]:
    checking = [sum(check.seconds for check in one.checks) for one in past]
    working = [max(one.seconds - spent, 0.0) for one, spent in zip(past, checking, strict=True)]
    return [Layer("agent", "turn", working), Layer("checks", "check", checking)]


def refusals(history: RunHistory) -> Html | None:
    rows = [(one, refused) for one in history.iterations for refused in one.refused]
    columns = [
        HtmlColumn("Iteration", [str(one.number) for one, _ in rows], kind="num"),
        HtmlColumn("The agent claimed", [element("code", refused.claim) for _, refused in rows]),
        HtmlColumn("Refused by", [refused.gate for _, refused in rows]),
        HtmlColumn("Because", [refused.reason for _, refused in rows], kind="wrap"),
    ]
    return table(columns) if rows else None


def talk(history: RunHistory) -> Html | None:
    """What the agent asked, what it was told, and what was not answered."""
    asked = [("agent", question.text) for question in history.questions]
    answers = [question.answer or "not answered" for question in history.questions]
    told = [(one.number, text) for one in history.iterations for text in one.told if text not in answers]
    columns = [
        HtmlColumn("Who", [*(who for who, _ in asked), *(f"you, iteration {number}" for number, _ in told)]),
        HtmlColumn("What", [*(text for _, text in asked), *(text for _, text in told)], kind="wrap"),
        HtmlColumn("Answer", [*answers, *("" for _ in told)], kind="wrap"),
    ]
    return table(columns) if asked or told else None


def files(history: RunHistory) -> Html | None:
    """Every file that the run changed, and by how many lines."""
    if not history.files:
        return None
    shown = history.files[:MOST_FILES]
    columns = [
        HtmlColumn("File", [element("span", one.path, class_="mono") for one in shown], "in all", "wide"),
        HtmlColumn("", [_STATUS.get(one.status, one.status) for one in shown]),
        HtmlColumn("Lines", [lines_of(one) for one in shown], sums(history.files), "num"),
    ]
    more = len(history.files) - len(shown)
    note = element("p", f"and {more} more", class_="soft") if more else None
    return joined(table(columns, has_total=len(shown) > 1), note)


def lines_of(one: FileChange) -> Html | str:
    """How many lines were added to a file, and how many taken away."""
    if one.added is None or one.deleted is None:
        return "binary"
    return joined(
        element("span", f"+{one.added}", class_="plus"), " ", element("span", f"−{one.deleted}", class_="minus")
    )


def sums(changed: Sequence[FileChange]) -> str:
    return f"+{sum(one.added or 0 for one in changed)} −{sum(one.deleted or 0 for one in changed)}"


def result(one: PastIteration) -> Html:
    """What came of an iteration, in a few coloured words."""
    calm = ("no claim", "interrupted", "unfinished")
    tone = "good" if one.is_accepted else "calm" if one.result in calm else "bad"
    return element("span", happened(one), class_=f"badge {tone}")


def details(run: str, one: PastIteration) -> Html:
    """All about one iteration, folded away on a screen and open on paper."""
    summary = element("summary", element("b", f"Iteration {one.number} "), result(one))
    inside = element("div", particulars(one), class_="inside")
    return element("details", summary, inside, class_="card", id=f"{run}-{one.number}")


def particulars(one: PastIteration) -> Html:
    listed = [part for name, text in _particulars(one) if text for part in (element("dt", name), element("dd", text))]
    return element("dl", listed)


def _particulars(one: PastIteration) -> list[tuple[str, str]]:
    changed = one.files or []
    names = ", ".join(file.path for file in changed[:20]) + (" …" if len(changed) > 20 else "")
    red = [f"{check.name} ({how_it_failed(check)}) {check.log}".strip() for check in one.checks if not check.passed]
    return [
        ("Agent", one.agent),
        ("Answer", one.answer),
        ("Ended by ralph", one.ended_by.replace("-", " ")),
        ("Tool errors", str(one.tool_errors or "")),
        (
            "Not counted",
            f"{plural(one.uncounted, 'turn')}: a limit or a passing fault" if one.uncounted else "",
        ),
        ("Checks that failed", "\n".join(red)),
        ("Reviews", ", ".join(f"{review.name} {'✓' if review.passed else '✗'}" for review in one.reviews)),
        ("You said", "\n".join(one.told)),
        ("Put back", ", ".join(one.restored)),
        ("Source control", "\n".join(f"{task} {'✓' if ok else '✗'} {detail}" for task, ok, detail in one.scm)),
        ("Files", f"{names} ({sums(changed)})" if changed else ""),
    ]


def cost(usd: float | None) -> str:
    return "" if usd is None else money(usd)
