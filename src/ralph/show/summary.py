"""What happened in the run, at one look? A table with a row for each iteration, the same with and without colour."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from ralph.core.events import RunFinished
from ralph.core.text import one_line, short
from ralph.history.account import Account, Chapter
from ralph.history.needs import needs
from ralph.show.outlet import Marks, Style
from ralph.show.tally import Row
from ralph.show.words import count, cut, duration, moment, money, plural, width

_MOST_ROWS = 60
_GAP = "  "


class Column(Struct):
    """`least`: how narrow it may get where room is short (0: it keeps its width)."""

    title: str
    cells: list[str]
    total: str = ""
    is_number: bool = True
    least: int = 0
    size: int = 0

    def cell(self, text: str, more: str) -> str:
        text = cut(text, self.size, more)
        space = " " * (self.size - width(text))
        return space + text if self.is_number else text + space


def table(rows: Sequence[Row], finished: RunFinished, style: Style, room: int = 80) -> list[str]:
    """The lines of the summary, at most `room` wide as long as that leaves space for words."""
    shown = [*rows[: _MOST_ROWS // 2], *rows[-_MOST_ROWS // 2 :]] if len(rows) > _MOST_ROWS else rows
    columns = [column for column in _columns(shown, rows, finished, style.marks) if any(column.cells)]
    has_total = len(rows) > 1
    _fit(columns, room, has_total)
    more = style.marks.more
    lines = [style.paint("dim", _line([column.cell(column.title, more) for column in columns]))]
    for at, row in enumerate(shown):
        lines.append(style.paint(_tone(row), _line([column.cell(column.cells[at], more) for column in columns])))
    if len(rows) > len(shown):
        gap = f"{_GAP}{more} {plural(len(rows) - len(shown), 'more iteration')}"
        lines.insert(1 + _MOST_ROWS // 2, style.paint("dim", gap))
    if has_total:
        lines.append(style.paint("bold", _line([column.cell(column.total, more) for column in columns])))
    return lines if rows else []


def _columns(shown: Sequence[Row], rows: Sequence[Row], finished: RunFinished, marks: Marks) -> list[Column]:
    cost = "" if finished.cost_usd is None else money(finished.cost_usd)
    return [
        Column("#", [str(row.number) for row in shown]),
        Column("checks", [_checks(row, marks) for row in shown], is_number=False, least=14),
        Column("tools", [_known(row.tools) for row in shown], str(sum(row.tools or 0 for row in rows))),
        Column("cost", ["" if row.cost is None else money(row.cost) for row in shown], cost),
        Column("time", [duration(row.seconds) for row in shown], duration(finished.duration_s)),
        Column("what happened", [row.happened for row in shown], "total", is_number=False, least=16),
    ]


def _checks(row: Row, marks: Marks) -> str:
    if not row.checks:
        return ""
    passed = len(row.checks) - len(row.failed)
    share = f"{passed}/{len(row.checks)}"
    return f"{marks.failed} {share} {', '.join(row.failed)}" if row.failed else f"{marks.passed} {share}"


def _known(number: int | None) -> str:
    return "" if number is None else str(number)


def _tone(row: Row) -> str:
    if row.happened.startswith("done"):
        return "green"
    return "yellow" if row.failed or row.happened.startswith(("failed", "claim refused")) else "plain"


def _fit(columns: list[Column], room: int, has_total: bool) -> None:
    for column in columns:
        texts = (column.title, column.total if has_total else "", *column.cells)
        column.size = max(map(width, texts))
    excess = sum(column.size + len(_GAP) for column in columns) - room
    for column in reversed(columns):
        if column.least and excess > 0:
            less = min(excess, max(column.size - column.least, 0))
            column.size -= less
            excess -= less


def _line(cells: list[str]) -> str:
    return (_GAP + _GAP.join(cells)).rstrip()


MOST_FILES = 12


def chapters(account: Account, style: Style) -> Iterator[str]:
    dot = f" {style.marks.dot} "
    facts = [account.agent, account.preset, account.workspace, account.branch]
    yield style.paint("title", f"run {account.run}") + dot + dot.join(short(fact, 200) for fact in facts if fact)
    yield f"  {style.paint('dim', 'goal   ')} {short(account.goal, 500)}"
    yield f"  {style.paint('dim', 'began  ')} {moment(account.began, 1e9)}, {_spent(account)}"
    for chapter in account.chapters:
        yield ""
        yield from _chapter(chapter, style)
    yield ""
    wanted = needs(account)
    if wanted:
        yield style.paint("bold", "what needs you")
        for need in wanted:
            yield f"  {style.marks.check} {need.text}" + (f"  {need.command}" if need.command else "")
        yield ""
    tone = {0: "good", 2: "alarm", None: "cyan"}.get(account.exit_code if account.outcome else None, "warn")
    yield style.paint(tone, account.sentence)


def _spent(account: Account) -> str:
    spent = [duration(account.seconds)]
    if account.cost_usd is not None:
        spent.append(money(account.cost_usd))
    if account.usage.tokens:
        spent.append(f"{count(account.usage.tokens)} tokens")
    if account.files is not None:
        spent.append(f"{plural(len(account.files), 'file')} changed")
    return ", ".join(spent)


def _chapter(chapter: Chapter, style: Style) -> Iterator[str]:
    marks, paint = style.marks, style.paint
    facts = [duration(chapter.seconds)] if chapter.is_whole else []
    if chapter.usage.cost_usd is not None:
        facts.append(money(chapter.usage.cost_usd))
    if chapter.usage.tokens:
        facts.append(f"{count(chapter.usage.tokens)} tokens")
    if chapter.tool_calls is not None:
        facts.append(plural(chapter.tool_calls, "tool call"))
    tone = "green" if chapter.is_accepted else "plain" if chapter.happened in ("no claim", "interrupted") else "yellow"
    title = f"{paint('title', f'iteration {chapter.number}')}  {paint(tone, short(chapter.happened, 200))}"
    yield f"{title}  {paint('dim', ', '.join(facts))}".rstrip()
    for text in chapter.told:
        yield f"  {paint('cyan', f'{marks.person} you: {short(text, 300)}')}"
    if chapter.answer:
        yield f"  {marks.quote} {short(chapter.answer, 300)}"
    for check in chapter.checks:
        mark = paint("green", marks.passed) if check.passed else paint("alarm", marks.failed)
        how = "" if check.passed else f" {check.how}" + (f" {marks.to} {check.log}" if check.log else "")
        yield f"  {mark} {check.name}{paint('red', how)} {paint('dim', duration(check.seconds))}"
    for refused in chapter.refused:
        yield f"  {paint('alarm', f'{marks.refused} {refused.claim} refused by {refused.gate}: {refused.reason}')}"
    for task, ok, detail in chapter.scm:
        mark = paint("green", marks.ok) if ok else paint("red", marks.error)
        yield f"  {mark} {task}" + (f": {one_line(detail)}" if detail else "")
    yield from _files(chapter, style)


def _files(chapter: Chapter, style: Style) -> Iterator[str]:
    files = chapter.files or []
    for one in files[:MOST_FILES]:
        lines = "binary" if one.added is None else f"+{one.added} -{one.deleted}"
        yield f"  {style.paint('dim', one.status)} {short(one.path, 300)} {style.paint('dim', lines)}"
    if len(files) > MOST_FILES:
        yield style.paint("dim", f"  {style.marks.more} {plural(len(files) - MOST_FILES, 'more file')}")
