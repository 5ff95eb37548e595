"""A judgement for people: the screen of `ralph judge`, the comment in Markdown, and a page."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ralph.core.receipt import JudgedCheck, Receipt
from ralph.core.text import one_line, plural, short
from ralph.show.outlet import Style
from ralph.show.plots import Html, element, joined
from ralph.show.report import code, escape_markdown, page
from ralph.show.words import sentence_case

MAX_CHECKS, MAX_LINES = 6, 6  # checks in the table; lines under the verdict
NAME_WIDTH = 31
TONES = {"holds": "green", "refuted": "alarm", "could not judge": "yellow"}
CLASSES = {"holds": "good", "refuted": "bad", "could not judge": "warn"}
SIGNS = {"holds": "✅", "refuted": "❌", "could not judge": "⚠️"}
# The states by their rows: title, before, now.
ROWS = (
    ("as it is", "base", "head"),
    ("with the tests as they were", "", "old_tests"),
    ("with the code as it was", "", "old_code"),
    ("with the code as it was", "", "undone"),
)


class ShownResult(Struct, frozen=True):
    """What one check showed on one state. Without it, nothing ran there."""

    text: str = ""
    passed: bool | None = None

    def draw(self, passed: str = "✓", failed: str = "✗") -> str:
        return "" if self.passed is None else f"{passed if self.passed else failed} {self.text}".rstrip()


class TableRow(Struct, frozen=True):
    title: str
    before: ShownResult = ShownResult()
    now: ShownResult = ShownResult()
    is_check: bool = False
    """The row begins what is about one check or exam."""


def rows(receipt: Receipt) -> Iterator[TableRow]:
    """Yield the rows of the table: each check with its states, then exams and reviews."""
    cells = {name: {result.command: result for result in results} for name, results in receipt.cells.items()}
    for command in receipt.checks[:MAX_CHECKS]:
        name = short(command, NAME_WIDTH)
        before, now = (_cell(cells, state, command) for state in ("base", "head"))
        states = [row for row in ROWS[1:] if command in cells.get(row[2], {})]
        if not states:
            yield TableRow(name, before, now, is_check=True)
            continue
        yield TableRow(name, is_check=True)
        for title, earlier, later in (ROWS[0], *states):
            yield TableRow(title, _cell(cells, earlier, command), _cell(cells, later, command, names=bool(not earlier)))
    if len(receipt.checks) > MAX_CHECKS:
        yield TableRow(f"… {plural(len(receipt.checks) - MAX_CHECKS, 'more check')}", is_check=True)
    for exam in receipt.exams:
        result = ShownResult("" if exam.passed else "fails", exam.passed)
        yield TableRow(f"exam {exam.script}", now=result, is_check=True)
    for review in receipt.reviews:
        answer = "approves" if review.passed else "no answer" if review.problem else "asks for changes"
        yield TableRow(f"review {review.name}", now=ShownResult(answer, review.passed), is_check=True)


def _cell(
    cells: Mapping[str, Mapping[str, JudgedCheck]], state: str, command: str, *, names: bool = False
) -> ShownResult:
    result = cells.get(state, {}).get(command)
    if result is None:
        return ShownResult()
    if result.passed:
        return ShownResult(str(result.ran) if result.ran is not None else "passes", passed=True)
    if names and len(result.failing) == 1 and not result.load_errors:
        return ShownResult(short(result.failing[0].rpartition("::")[2].rpartition(".")[2], 40), passed=False)
    if result.load_errors:
        return ShownResult(f"can't load {short(result.load_errors[0], 30)}", passed=False)
    if result.failed and result.ran:
        return ShownResult(f"{result.failed} of {result.ran}", passed=False)
    return ShownResult("timeout" if result.exit_code is None else f"exit code {result.exit_code}", passed=False)


def sentences(receipt: Receipt) -> Iterator[tuple[str, str]]:
    """Yield what stands under the verdict, each with its kind: because, look, or note."""
    yield from (("because", reason) for reason in receipt.reasons)
    yield from (("look at", look) for look in receipt.looks)
    yield from (("note", note) for note in receipt.notes)
    yield from (("untested", place) for place in receipt.untested[:3])
    if receipt.verdict == "holds" and not receipt.exams:
        yield "not seen", "inputs that no test and no exam has"


def judgement_lines(receipt: Receipt, style: Style, path: str) -> Iterator[str]:
    """Yield the screen without its first line, which says what is judged. `path` is where the receipt is."""
    table = [*rows(receipt)]
    if any(result for result in receipt.cells.values()):
        yield from _table_lines(table, style)
    bar, tone = style.marks.verdict, TONES[receipt.verdict]
    yield style.paint(tone, f"{bar} {receipt.headline}")
    below = [*sentences(receipt)]
    for kind, text in below[:MAX_LINES]:
        yield f"{style.paint(tone, bar)} {kind}: {one_line(text, 300)}"
    if len(below) > MAX_LINES:
        more = plural(len(below) - MAX_LINES, "more line")
        yield f"{style.paint(tone, bar)} {style.marks.more} {more} in the receipt"
    yield style.paint("dim", f"{cost(receipt)}receipt {path}")


def _table_lines(table: Sequence[TableRow], style: Style) -> Iterator[str]:
    titles = [row.title if row.is_check else f"  {row.title}" for row in table]
    wide = max(map(len, titles), default=0) + 4
    middle = max([len("before"), *(len(row.before.draw(style.marks.passed, style.marks.failed)) for row in table)]) + 4
    columns = f"{'before':{middle}}now"
    yield ""
    yield f"  {'':{wide}}{style.paint('dim', columns)}"
    for row, title in zip(table, titles, strict=True):
        before, now = _painted(row.before, middle, style), _painted(row.now, 0, style)
        yield f"  {title:{wide}}{before}{now}".rstrip()
    yield ""


def _painted(cell: ShownResult, width: int, style: Style) -> str:
    """Return the cell in colour, padded by its width without colour."""
    text = cell.draw(style.marks.passed, style.marks.failed)
    painted = style.paint("green" if cell.passed else "alarm", text) if text else ""
    return painted + " " * (width - len(text))


def cost(receipt: Receipt) -> str:
    if not receipt.runs:
        return ""
    ratio = f", {receipt.ratio:g} × one" if receipt.ratio else ""
    return f"{plural(receipt.runs, 'check run')}{ratio} · "


def as_markdown(receipt: Receipt) -> str:
    """Return the judgement as a comment on a pull request, or for the summary of a CI job."""
    lines = [
        f"### {SIGNS[receipt.verdict]} {escape_markdown(receipt.headline)}",
        "",
        escape_markdown(receipt.title, 400),
    ]
    if table := [*rows(receipt)]:
        lines += ["", "| | before | now |", "|---|---|---|"]
        for row in table:
            title = code(row.title) if row.is_check else escape_markdown(row.title)
            lines.append(f"| {title} | {escape_markdown(row.before.draw())} | {escape_markdown(row.now.draw())} |")
    lines += ["", *(f"- **{kind}:** {escape_markdown(text, 400)}" for kind, text in sentences(receipt))]
    lines += ["", f"<sub>{cost(receipt)}ralph judge · stale when {receipt.stale_when}</sub>", ""]
    return "\n".join(lines)


def as_page(receipt: Receipt) -> str:
    """Return the judgement as a self-contained page."""
    badge = element(f"span.badge.{CLASSES[receipt.verdict]}", receipt.headline)
    body = joined(
        element("div.top", element("span", "ralph judge"), element("span", receipt.at)),
        element("h1", sentence_case(receipt.reasons[0]) if receipt.reasons else sentence_case(receipt.headline)),
        element("p", badge),
        element(
            "p.facts",
            element("span", receipt.title),
            element("span", f"{cost(receipt)}stale when {receipt.stale_when}"),
        ),
        _page_table([*rows(receipt)]),
        element(
            "div.card.needs", element("ul", *(element("li", element("b", f"{k}: "), t) for k, t in sentences(receipt)))
        ),
    )
    return page(f"ralph: {receipt.headline}", body)


def _page_table(table: Sequence[TableRow]) -> Html:
    if not table:
        return Html("")
    head = element("thead", element("tr", element("th", ""), element("th", "before"), element("th", "now")))
    lines = [
        element(
            "tr",
            element("td.wrap", element("code", row.title) if row.is_check else row.title),
            *(
                element("td", element(f"span.{'plus' if cell.passed else 'minus'}", cell.draw()))
                for cell in (row.before, row.now)
            ),
        )
        for row in table
    ]
    return element("div.scroll", element("table", head, element("tbody", *lines)))
