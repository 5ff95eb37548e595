"""What happened in the run, at one look? A table with a row for each iteration, the same with and without colour."""

from collections.abc import Sequence

from msgspec import Struct

from ralph.core.events import RunFinished
from ralph.show.amounts import duration, money, plural
from ralph.show.cells import cut, width
from ralph.show.style import Marks, Style
from ralph.show.tally import Row

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
