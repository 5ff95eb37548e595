"""What stands in a report, table by table? Iterations and their checks, drawings, refusals, talk, files, details."""

from collections.abc import Sequence

from msgspec import Struct

from ralph.history.account import Account, Changed, Chapter, Verified
from ralph.show import plots
from ralph.show.plots import Html, Layer, element, joined
from ralph.show.words import count, duration, money, plural

MOST_FILES = 300
MOST_CHECKS = 12
_STATUS = {"A": "new", "D": "deleted", "M": "changed", "T": "changed type"}


class Column(Struct):
    """`kind` is the class of its cells: num, cell, wrap or nothing."""

    title: str
    cells: Sequence[str]
    total: str = ""
    kind: str = ""

    @property
    def is_empty(self) -> bool:
        return not any(self.cells)


def table(columns: Sequence[Column], has_total: bool = False) -> Html:
    columns = [column for column in columns if not column.is_empty]
    heads = [element("th", column.title, class_=column.kind or None, scope="col") for column in columns]
    cells = [[element("td", cell, class_=column.kind or None) for cell in column.cells] for column in columns]
    rows = [element("tr", row) for row in zip(*cells, strict=True)]
    total = element("tr", [element("td", column.total, class_=column.kind or None) for column in columns])
    inner = [element("thead", element("tr", heads)), element("tbody", rows)]
    inner += [element("tfoot", total)] if has_total else []
    return element("div", element("table", inner), class_="card scroll")


def timeline(account: Account) -> Html | None:
    if not account.stretches:
        return None
    kinds = {"turn": "agent", "check": "checks", "wait": "waiting", "pause": "paused"}
    used = {stretch.kind for stretch in account.stretches}
    legend = _legend([(kind, name) for kind, name in kinds.items() if kind in used])
    return element("div", legend, plots.timeline(account), class_="card")


def _legend(named: Sequence[tuple[str, str]]) -> Html:
    return element("span", [joined(element("i", class_=f"f-{tone}"), name) for tone, name in named], class_="legend")


def iterations(account: Account) -> Html | None:
    """The matrix: a row for each iteration, a column for each check, and what it took."""
    chapters = account.chapters
    names = list(dict.fromkeys(check.name for chapter in chapters for check in chapter.checks))
    tools = sum(one.tool_calls or 0 for one in chapters)
    columns = [
        Column(
            "#", [element("a", str(one.number), href=f"#{account.run}-{one.number}") for one in chapters], kind="num"
        ),
        *(Column(name, [_verdict(name, one) for one in chapters], kind="cell check") for name in names[:MOST_CHECKS]),
        Column("More checks", [_others(one, names) for one in chapters], kind="cell"),
        Column("Tools", ["" if one.tool_calls is None else str(one.tool_calls) for one in chapters], str(tools), "num"),
        Column("Tokens", [_tokens(one.usage.tokens) for one in chapters], _tokens(account.usage.tokens), "num"),
        Column("Cost", [cost(one.usage.cost_usd) for one in chapters], cost(account.cost_usd), "num"),
        Column("Time", [duration(one.seconds) for one in chapters], duration(account.seconds), "num"),
        Column("Files", [_size(one.files) for one in chapters], _size(account.files), "num"),
        Column("What happened", [one.happened for one in chapters], "in all", "wrap"),
    ]
    return table(columns, has_total=len(chapters) > 1) if chapters else None


def _tokens(number: int) -> str:
    return count(number) if number else ""


def _size(changed: Sequence[Changed] | None) -> str:
    return "" if changed is None else str(len(changed))


def _verdict(name: str, chapter: Chapter) -> Html:
    found = [check for check in chapter.checks if check.name == name]
    return joined(*(_mark(check) for check in found))


def _mark(check: Verified) -> Html:
    tone, mark = ("good", "✓") if check.passed else ("bad", "✗")
    said = f"passed, {duration(check.seconds)}" if check.passed else f"{check.how}, {duration(check.seconds)}"
    return element("span", mark, class_=f"mark {tone}", title=said)


def _others(chapter: Chapter, names: list[str]) -> str:
    rest = [check for check in chapter.checks if check.name in names[MOST_CHECKS:]]
    return f"{sum(check.passed for check in rest)}/{len(rest)}" if rest else ""


def drawings(account: Account) -> Html | None:
    """Checks, cost and tokens of each iteration, where there is more than one to compare."""
    chapters = [chapter for chapter in account.chapters if chapter.is_whole]
    if len(chapters) < 2:
        return None
    labels = [str(chapter.number) for chapter in chapters]
    drawn = [_drawing("Checks", labels, _check_layers(chapters), lambda value: f"{value:g}")]
    drawn.append(_drawing("Cost", labels, [Layer("cost", "turn", [c.usage.cost_usd or 0.0 for c in chapters])], money))
    drawn.append(_drawing("Tokens", labels, _token_layers(chapters), lambda value: count(round(value))))
    drawn.append(_drawing("Time", labels, _time_layers(chapters), duration))
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


def _check_layers(chapters: list[Chapter]) -> list[Layer]:
    passed = [float(sum(check.passed for check in chapter.checks)) for chapter in chapters]
    failed = [float(sum(not check.passed for check in chapter.checks)) for chapter in chapters]
    return [Layer("passed", "good", passed), Layer("failed", "bad", failed)]


def _token_layers(chapters: list[Chapter]) -> list[Layer]:
    usages = [chapter.usage for chapter in chapters]
    return [
        Layer("from cache", "cache", [float(usage.cache_read_tokens) for usage in usages]),
        Layer("read", "in", [float(usage.input_tokens + usage.cache_write_tokens) for usage in usages]),
        Layer("written", "out", [float(usage.output_tokens) for usage in usages]),
    ]


def _time_layers(chapters: list[Chapter]) -> list[Layer]:
    checking = [sum(check.seconds for check in chapter.checks) for chapter in chapters]
    working = [max(chapter.seconds - spent, 0.0) for chapter, spent in zip(chapters, checking, strict=True)]
    return [Layer("agent", "turn", working), Layer("checks", "check", checking)]


def refusals(account: Account) -> Html | None:
    rows = [(chapter, refused) for chapter in account.chapters for refused in chapter.refused]
    columns = [
        Column("Iteration", [str(chapter.number) for chapter, _ in rows], kind="num"),
        Column("The agent claimed", [element("code", refused.claim) for _, refused in rows]),
        Column("Refused by", [refused.gate for _, refused in rows]),
        Column("Because", [refused.reason for _, refused in rows], kind="wrap"),
    ]
    return table(columns) if rows else None


def talk(account: Account) -> Html | None:
    """What the agent asked, what it was told, and what was not answered."""
    asked = [("agent", question.text) for question in account.questions]
    answers = [question.answer or "not answered" for question in account.questions]
    told = [(chapter.number, text) for chapter in account.chapters for text in chapter.told if text not in answers]
    columns = [
        Column("Who", [*(who for who, _ in asked), *(f"you, iteration {number}" for number, _ in told)]),
        Column("What", [*(text for _, text in asked), *(text for _, text in told)], kind="wrap"),
        Column("Answer", [*answers, *("" for _ in told)], kind="wrap"),
    ]
    return table(columns) if asked or told else None


def files(account: Account) -> Html | None:
    """Every file that the run changed, and by how many lines."""
    if not account.files:
        return None
    shown = account.files[:MOST_FILES]
    columns = [
        Column("File", [element("span", one.path, class_="mono") for one in shown], "in all", "wide"),
        Column("", [_STATUS.get(one.status, one.status) for one in shown]),
        Column("Lines", [lines_of(one) for one in shown], sums(account.files), "num"),
    ]
    more = len(account.files) - len(shown)
    note = element("p", f"and {more} more", class_="soft") if more else None
    return joined(table(columns, has_total=len(shown) > 1), note)


def lines_of(one: Changed) -> Html | str:
    """How many lines were added to a file, and how many taken away."""
    if one.added is None or one.deleted is None:
        return "binary"
    return joined(
        element("span", f"+{one.added}", class_="plus"), " ", element("span", f"−{one.deleted}", class_="minus")
    )


def sums(changed: Sequence[Changed]) -> str:
    return f"+{sum(one.added or 0 for one in changed)} −{sum(one.deleted or 0 for one in changed)}"


def happened(chapter: Chapter) -> Html:
    """What came of an iteration, in a few coloured words."""
    calm = ("no claim", "interrupted", "not finished")
    tone = "good" if chapter.is_accepted else "calm" if chapter.happened in calm else "bad"
    return element("span", chapter.happened, class_=f"badge {tone}")


def details(run: str, chapter: Chapter) -> Html:
    """All about one iteration, folded away on a screen and open on paper."""
    summary = element("summary", element("b", f"Iteration {chapter.number} "), happened(chapter))
    inside = element("div", particulars(chapter), class_="inside")
    return element("details", summary, inside, class_="card", id=f"{run}-{chapter.number}")


def particulars(chapter: Chapter) -> Html:
    listed = [
        part for name, text in _particulars(chapter) if text for part in (element("dt", name), element("dd", text))
    ]
    return element("dl", listed)


def _particulars(chapter: Chapter) -> list[tuple[str, str]]:
    changed = chapter.files or []
    names = ", ".join(one.path for one in changed[:20]) + (" …" if len(changed) > 20 else "")
    red = [f"{check.name} ({check.how}) {check.log}".strip() for check in chapter.checks if not check.passed]
    return [
        ("Agent", chapter.agent),
        ("Answer", chapter.answer),
        ("Ended by ralph", chapter.ended_by.replace("-", " ")),
        ("Tool errors", str(chapter.tool_errors or "")),
        (
            "Not counted",
            f"{plural(chapter.uncounted, 'turn')}: a limit or a passing fault" if chapter.uncounted else "",
        ),
        ("Checks that failed", "\n".join(red)),
        ("Reviews", ", ".join(f"{name} {'✓' if passed else '✗'}" for name, passed in chapter.reviews)),
        ("You said", "\n".join(chapter.told)),
        ("Put back", ", ".join(chapter.restored)),
        ("Source control", "\n".join(f"{task} {'✓' if ok else '✗'} {detail}" for task, ok, detail in chapter.scm)),
        ("Files", f"{names} ({sums(changed)})" if changed else ""),
    ]


def cost(usd: float | None) -> str:
    return "" if usd is None else money(usd)
