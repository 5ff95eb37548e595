"""How are the nights told? Tables of who did what, the same on the screen and in the documentation."""

from collections.abc import Iterable, Sequence
from typing import Any

from bench.nights.measures import Number, Standing, ideal_dollars, over_ideal, share, standing
from bench.nights.night import Played
from bench.nights.population import PROFILES

COLUMNS = (
    "loop",
    "false done",
    "missed done",
    "finished",
    "turns ÷ ideal",
    "$ a finished task",
    "own s a turn",
    "MB",
    "left something running",
    "touched the user's things",
    "exit code true",
    "last sentence true",
    "not over by morning",
)


def by_contender(played: dict[str, Sequence[Played]]) -> str:
    rows = [_cells(standing(name, nights)) for name, nights in played.items() if nights]
    first = next(iter(played.values()))
    best = ("a judge who knows the truth", "0", "0", "all", "1", f"{ideal_dollars(first):.2f}", *[""] * 7)
    return markdown([COLUMNS, *rows, best])


def _cells(one: Standing) -> tuple[str, ...]:
    return (
        one.contender,
        str(one.false_done),
        str(one.missed),
        str(one.finished),
        str(one.turns) if one.turns else "never finished",
        f"{one.dollars:.2f}" if one.dollars is not None else "never finished",
        f"{one.own:.3f}",
        f"{one.memory:.0f}" if one.memory else "",
        str(one.left),
        str(one.touched),
        f"{one.exit_true.value:.1%}",
        f"{one.sentence_true.value:.1%}",
        str(one.unended),
    )


def by_profile(nights: Sequence[Played]) -> str:
    rows = [("agent", "what it is like", "false done", "missed done", "turns ÷ ideal")]
    for profile in PROFILES:
        own = [night for night in nights if night.profile == profile.name]
        turns = over_ideal([night for night in own if night.finished])
        false, missed = share(own, lambda night: night.false_done), share(own, lambda night: night.missed)
        told = f"{turns.value:.2f}" if turns else "never finished"
        rows.append((profile.name, profile.why, _short(false.count, own), _short(missed.count, own), told))
    return markdown(rows)


def held(numbers: Iterable[Number]) -> str:
    rows = [(one.what, one.seen, "✓" if one.met else "✗") for one in numbers]
    return markdown([("number", "seen", ""), *rows])


def markdown(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in rows]
    lines.insert(1, f"| {' | '.join('-' * width for width in widths)} |")
    return "\n".join(lines)


def _short(count: int, nights: Sequence[Played]) -> str:
    return f"{count} of {len(nights)}"


def story(night: Played, output: bool = False) -> str:
    """One night, line by line."""
    lines = [f"night {night.number}: {night.profile}, {night.contender}"]
    for fact in night.story:
        if fact["kind"] == "end":
            lines.append(f"  turn {fact['number']:2}  {'; '.join(_happened(fact))}")
    truth = "green" if night.green else "red"
    lines += [f"  at the end  {night.last_line}", f"           exit code {night.exit_code}; the work is {truth}"]
    lines += [f"  left running: {', '.join(night.left)}"] if night.left else []
    lines += [f"  touched: {', '.join(night.touched)}"] if night.touched else []
    return "\n".join([*lines, *([night.output] if output else [])])


FATES = {
    "crash": "crashes",
    "cut": "is cut off in the middle of its answer",
    "limit": "runs into a usage limit",
    "overload": "finds its server overloaded",
    "hang": "hangs",
    "flood": "prints 12 MB",
}


def _happened(fact: dict[str, Any]) -> list[str]:
    did = [*fact["did"]] + ([FATES[fact["fate"]]] if fact["fate"] in FATES else [])
    if fact["fate"] in ("ok", "flood"):
        did.append(f"says “{fact['said']}”")
    return [*(did or ["does nothing"]), f"the work is {'green' if fact['green'] else 'red'}"]
