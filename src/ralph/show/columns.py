"""The columns of tables of iterations. The screen, `ralph show`, reports and the web UI render the same ones."""

from collections.abc import Sequence

from msgspec import Struct

from ralph.core.gains import format_change
from ralph.core.model import FileChange
from ralph.core.text import plural, short
from ralph.history.run_history import PastIteration, RunHistory
from ralph.show.words import cost, count, duration, hand_over_words, happened, progress_words


class Column(Struct):
    """A column of a table. `kind` is the CSS classes of its cells: .num, .cell, .wrap, .lesser (hidden on phones) or
    nothing. `least` is the width to which a terminal may shrink it, 0 if it may not; the smallest shrinks first."""

    title: str
    cells: Sequence[str]
    total: str = ""
    kind: str = ""
    least: int = 0

    @property
    def is_number(self) -> bool:
        return ".num" in self.kind


def iteration_columns(past: Sequence[PastIteration], history: RunHistory) -> list[Column]:
    """Return what each iteration used and how it ended, without its number and its checks. Totals are of the run."""
    calls = ["" if one.tool_calls is None else str(one.tool_calls) for one in past]
    all_calls = str(sum(one.tool_calls or 0 for one in history.whole))
    return [
        Column("Tools", calls, all_calls, ".num.lesser"),
        Column("Tokens", [_tokens(one.usage.tokens) for one in past], _tokens(history.usage.tokens), ".num.lesser"),
        *_spent_columns(past, history),
        Column("Files", [_number_of(one.files) for one in past], _number_of(history.files), ".num.lesser"),
        Column("Progress", [_progress(one, history) for one in past], kind=".wrap"),
        Column("What happened", [_happened(one) for one in past], "total", ".wrap", least=24),
    ]


def share_of_checks(one: PastIteration) -> str:
    """Return how many checks passed: `2/3`; "" if none ran."""
    return f"{sum(check.passed for check in one.checks)}/{len(one.checks)}" if one.checks else ""


def attempt_columns(past: Sequence[PastIteration], history: RunHistory) -> list[Column]:
    """Return what each attempt to improve a number tried, and its result, without its number."""
    assert history.first_numbers
    total = "total"
    if history.end_numbers:
        total = f"start to end {format_change(history.end_numbers.gain, history.first_numbers.metric)}"
    return [
        Column("Result", [one.gain or one.result for one in past], total, ".wrap", least=24),
        Column("Idea", [one.idea for one in past], kind=".wrap", least=12),
        *_spent_columns(past, history),
    ]


def _spent_columns(past: Sequence[PastIteration], history: RunHistory) -> list[Column]:
    return [
        Column("Cost", [cost(one.usage.cost_usd) for one in past], cost(history.cost_usd), ".num"),
        Column("Time", [duration(one.seconds) for one in past], duration(history.seconds), ".num"),
    ]


def _tokens(number: int) -> str:
    return count(number) if number else ""


def _number_of(files: Sequence[FileChange] | None) -> str:
    return "" if files is None else str(len(files))


def _progress(one: PastIteration, history: RunHistory) -> str:
    passed_on = hand_over_words(one.hand_over) if one.hand_over else ""
    return "; ".join(filter(None, (progress_words(one, history), passed_on)))


def _happened(one: PastIteration) -> str:
    committed = ", committed" if any(ok and task == "commit" for task, ok, _ in one.scm) else ""
    reviews = f", {plural(len(one.reviews), 'review')}" if one.reviews else ""
    return short(happened(one), 200) + committed + reviews
