"""Tables of results, the same on the screen and in the documentation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.nights.measures import Number, Share, ideal_dollars, over_ideal, share, standing
from bench.nights.night import Played
from bench.nights.population import PROFILES, Profile

COLUMNS = (
    "loop",
    "false done",
    "missed done",
    "finished, of those that could be",
    "$ per finished task",
    "money in nights that failed",
    "turns ÷ ideal",
    "exit code true",
    "left something running",
    "not over by morning",
)


def standings(played: Mapping[str, Sequence[Played]]) -> str:
    """Results of each loop."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for one in (standing(name, nights) for name, nights in played.items() if nights):
        turns = str(one.turns) if one.turns else "never finished"
        dollars = f"{one.dollars:.2f}" if one.dollars is not None else "never finished"
        shares = (str(one.false_done), str(one.missed), str(one.finished))
        rest = (f"{one.in_vain:.0%}", turns, str(one.exit_true), str(one.left), str(one.unended))
        rows.append((one.contender, *shares, dollars, *rest))
    first = next(iter(played.values()))
    return markdown(
        [*rows, ("a judge who knows the truth", *[""] * 3, f"{ideal_dollars(first):.2f}", "", "1", *[""] * 3)]
    )


def by_profile(nights: Sequence[Played]) -> str:
    rows = [("agent", "what it is like", "false done", "missed done", "turns ÷ ideal")]
    for profile in PROFILES:
        own = [night for night in nights if night.profile == profile.name]
        turns = over_ideal([night for night in own if night.finished])
        false, missed = share(own, lambda night: night.false_done), share(own, lambda night: night.missed)
        told = f"{turns.value:.2f}" if turns else "never finished"
        rows.append((profile.name, profile.why, _short(false), _short(missed), told))
    return markdown(rows)


def fooled_by(played: Mapping[str, Sequence[Played]]) -> str:
    """False dones by agent and loop."""
    rows: list[tuple[str, ...]] = [("agent", *played)]
    for profile in PROFILES:
        own = ([night for night in nights if night.profile == profile.name] for nights in played.values())
        rows.append((profile.name, *(_short(share(nights, lambda night: night.false_done)) for nights in own)))
    return markdown(rows)


SAYS = {
    "lie": "claims that all is done",
    "talk": "talks about the marker",
    "echo": "repeats its prompt",
    "bury": "says more after its claim",
    "forget": "does not claim",
}


def chances() -> str:
    """The probability of each behaviour, by agent."""
    return markdown([("agent", "in a turn"), *((one.name, ", ".join(_likely(one))) for one in PROFILES)])


def _likely(one: Profile) -> Iterator[str]:
    own = {"fixes the next part": one.fix, "fixes one more": one.another, "breaks one": one.breaks}
    own |= {SAYS[speech]: likely for speech, likely in one.speech.items()}
    own |= {FATES[fate]: likely for fate, likely in one.fate.items()}
    own |= {"special-cases what it fixes": one.special, "adds code that nothing needs": one.bloat}
    own |= {"leaves a process": one.leave, "edits the tests": one.cheat, "… through a script": one.by_script}
    own |= {"deletes the loop's files": one.wreck}
    return (f"{what} {likely:.0%}" for what, likely in own.items() if likely)


def numbers_table(numbers: Iterable[Number]) -> str:
    rows = [(one.what, one.seen, "✓" if one.met else "✗") for one in numbers]
    return markdown([("number", "seen", ""), *rows])


def markdown(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in rows]
    lines.insert(1, f"| {' | '.join('-' * width for width in widths)} |")
    return "\n".join(lines)


def _short(found: Share) -> str:
    return f"{found.count} of {found.total}"


def story(night: Played, output: bool = False) -> str:
    """Describe one night line by line."""
    lines = [f"night {night.number}: {night.profile}, {night.contender}"]
    ends = [fact for fact in night.story if fact["kind"] == "end"]
    for fact in ends:
        reaction = "; the loop continues" if fact["claims"] and fact is not ends[-1] else ""
        lines.append(f"  turn {fact['number']:2}  {'; '.join(_happened(fact))}{reaction}")
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
