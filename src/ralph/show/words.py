"""Facts as text: times, amounts and counts; outcomes, needs and advice, phrased the same on every surface."""

import os
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from shlex import quote
from unicodedata import category, east_asian_width

from ralph.core.events import RunFinished
from ralph.core.model import HandOver
from ralph.core.progress import GAINS
from ralph.core.proof import Proof
from ralph.core.state import STOP_REQUEST
from ralph.core.text import listed, plural, short
from ralph.core.text import money as money
from ralph.core.text import nickname as nickname
from ralph.history.overview import Now
from ralph.history.run_history import CheckResult, PastIteration, RunHistory
from ralph.settings.presets import find_preset

MAX_NUMBER = 10**15  # a forged journal may hold any number


def duration(seconds: float) -> str:
    """Return `0.04s`, `1.2s`, `45s`, `6m7s`, `1h4m`, `2d3h`."""
    if seconds < 0.095:
        return f"{max(seconds, 0.0):.2f}s" if seconds >= 0.005 else "0s"
    if seconds < 9.95:
        return f"{seconds:.1f}s".replace(".0", "")
    whole = round(min(MAX_NUMBER, seconds))  # in this order it also handles NaN
    for size, big, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size}{big}{rest}{small}" if rest else f"{whole // size}{big}"
    return f"{whole}s"


def count(number: int) -> str:
    """Return `950`, `45K`, `1.2M`."""
    number = min(number, MAX_NUMBER)
    for size, unit in ((1_000_000_000, "B"), (1_000_000, "M"), (1000, "K")):
        if number >= size * 0.9995:
            scaled = number / size
            return f"{scaled:.0f}{unit}" if scaled >= 9.95 else f"{scaled:.1f}{unit}".replace(".0", "")
    return str(number)


def cost(usd: float | None) -> str:
    """Return `$0.42`; "" if unknown."""
    return "" if usd is None else money(usd)


def spent(seconds: float, usd: float | None, tokens: int = 0) -> list[str]:
    """Return what was used, as far as it is known: `6m7s`, `$0.42`, `45K tokens`."""
    return [*filter(None, (duration(seconds), cost(usd), f"{count(tokens)} tokens" if tokens else ""))]


def from_home(path: str, home: str) -> str:
    """Return the path with `home` as ~."""
    return f"~{path[len(home) :]}" if home and f"{path}/".startswith(f"{home}/") else path


def agent_name(agent: str) -> str:
    """Return an agent's command line without the folder of its program."""
    program, space, words = agent.partition(" ")
    return program.rpartition("/")[2] + space + words


def path_from_here(path: str) -> str:
    """Return the path relative to the current folder if it is below it."""
    try:
        here = os.getcwd().rstrip("/") + "/"
    except OSError:  # it was removed
        return path
    return path.removeprefix(here)


def moment(at: float, seconds: float) -> str:
    """Return the time of day `at` (epoch seconds), with the weekday if it is more than half a day away."""
    try:
        return time.strftime("%H:%M" if seconds < 43_200 else "%a %H:%M", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def width(text: str) -> int:
    """Return how many columns `text` takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


@lru_cache(4096)
def _cells(char: str) -> int:
    if char < "\u0300" or char == "\ufe0f":  # which selects the emoji form of the previous one: a column wider
        return 1
    if east_asian_width(char) in "WF":
        return 2
    return 0 if category(char) in ("Mn", "Me", "Cf") else 1


def cut(text: str, columns: int, mark: str = "…") -> str:
    """Return as much of `text` as fits; if something is missing, it ends in `mark`."""
    if len(text) * 2 <= columns or width(text) <= columns:
        return text
    end = next(_ends(text, columns - width(mark)))
    return text[:end] + mark if columns >= width(mark) else ""


def _ends(text: str, columns: int) -> Iterator[int]:
    """Yield the end of each piece when the text is split into pieces that just fit."""
    used = 0
    for place, char in enumerate(text):
        cells = _cells(char)
        if used + cells > columns:
            yield place
            used = 0
        used += cells
    yield len(text)


def wrap(line: str, columns: int) -> list[str]:
    """Split `line` into rows that fit, between words if possible; later rows keep its indentation."""
    if len(line) * 2 <= columns or width(line) <= columns:
        return [line]
    body = line.lstrip(" ")
    indent = " " * min(len(line) - len(body), columns // 2)
    hanging = indent + ("  " if body.startswith(("- ", "* ")) else "")
    rows: list[str] = []
    row, room = indent, columns - len(indent)
    is_empty = True
    for word in body.split(" "):
        need = width(word) + (not is_empty)
        if need <= room:
            row, room, is_empty = row + (word if is_empty else " " + word), room - need, False
            continue
        if not is_empty:
            rows.append(row)
        row, room = hanging, columns - len(hanging)
        begin = 0
        for end in _ends(word, max(room, 2)):
            piece, begin = word[begin:end], end
            rows.append(row + piece)
        row, room, is_empty = rows.pop(), room - width(piece), False
    return [*rows, row]


def happened(iteration: PastIteration) -> str:
    """Return the result of an iteration."""
    if iteration.gain:
        return iteration.gain
    if iteration.result == "failed":
        return f"failed: {iteration.failure}"
    if iteration.result == "refused":
        return f"claim refused: {', '.join(dict.fromkeys(refusal.gate for refusal in iteration.refused))}"
    return "not finished" if iteration.result == "unfinished" else iteration.result


def progress_words(iteration: PastIteration, history: RunHistory) -> str:
    """Return the progress of an iteration: `fewer failures (3)`; empty if nothing measures it."""
    step = iteration.step
    if step is None or not step.checked:
        return ""
    phrases = [GAINS[step.gain]] if step.gain or step.counted else []
    phrases += [plural(step.failures, "failure")] if step.failures else []
    phrases += ["best so far"] if iteration.number == history.best and not iteration.is_accepted else []
    return ", ".join(filter(None, phrases))


def hand_over_words(hand_over: HandOver) -> str:
    """Return who took over, and with which files."""
    place = f"with the files of iteration {hand_over.start}" if hand_over.start else "with the files as they are"
    branch = f"; what it gives up is kept as {short(hand_over.kept_as, 200)}" if hand_over.kept_as else ""
    to, agent = short(hand_over.to, 80), short(hand_over.agent, 80)
    return f"{short(hand_over.reason, 200)}: {to} takes over from {agent}, {place}{branch}"


def baseline_sentence(history: RunHistory) -> str:
    """Return the results of the checks before the first turn; empty if they were not run."""
    red = [check for check in history.baseline if not check.passed]
    if not history.baseline or (not red and find_preset(history.preset).measures):
        return ""
    if not red:
        return "every check passes before the first turn: green checks won't show that this goal is met"
    names = listed([short(check.name, 60) for check in red], 3)
    number = f"{len(red)} of {len(history.baseline)} checks" if len(history.baseline) > 1 else "the check"
    late = "" if all(check.timeout is None for check in red) else f"; {RAISE_LIMIT}"
    return f"before the first turn {number} {'fails' if len(red) == 1 else 'fail'}: {names}{late}"


def proof_sentence(proof: Proof) -> str:
    """Return what the proof found: `untested: a.py:7 in f (every check passes without it); 1 of 2 parts, …`."""
    names = listed([short(part.place, 120) for part in proof.untested], 3)
    it = "it" if len(proof.untested) == 1 else "any one of them"
    cost = f"{plural(proof.check_runs, 'check run')}, {duration(proof.seconds)}"
    parts = f"{len(proof.untested)} of {plural(proof.tried, 'part')}, {cost}"
    each = "the one part" if proof.tried == 1 else f"each of {proof.tried} parts"
    missed = f"; {proof.not_tried} not tried for lack of time" if proof.not_tried else ""
    return {
        "untested": f"untested: {names} (every check passes without {it}); {parts}{missed}",
        "nothing tested": f"untested: every check passes without any of this change; {cost}",
        "tested": f"tested: a check fails without {each}; {cost}{missed}",
        "red": f"not proved: the checks fail in a fresh copy of this work; {cost}",
        "no time": f"not proved: running the checks twice takes too long; {cost}",
        "nothing to try": "nothing to prove: the change has no code that a check could miss",
    }[proof.verdict]


RAISE_LIMIT = "a check that timed out gets more time with --check-timeout"


def sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


_OBJECTIONS = {
    "checks": "a check failed",
    "tasks": "not every task is done",
    "protect": "protected files were changed",
    "wording": "not alone on the last line",
    "exam": "the hidden exam does not pass",
}


def verdict(iteration: PastIteration, history: RunHistory, is_asking: bool = False) -> str | None:
    """Return the line below the checks of an iteration; None if nothing was checked.

    While the agent `is_asking`, its claim does not count.
    """
    share = _share(iteration)
    if history.first_numbers:
        return happened(iteration)
    if iteration.result == "refused":
        claimed = f"the agent claimed {iteration.refused[0].claim}" if iteration.refused[0].claim else share
        gates = dict.fromkeys(refusal.gate for refusal in iteration.refused)
        objections = " and ".join(_OBJECTIONS.get(gate, f"{gate} refused it") for gate in gates)
        return f"not done: {claimed}, but {objections}"
    missing = "the agent waits for an answer" if is_asking else "no claim"
    if iteration.result == "no claim" and not iteration.checks:
        return None if history.claims == ("turn",) else f"not done yet: {missing}"
    if iteration.result == "no claim":
        return f"not done yet: {share}, but {missing}"
    if iteration.result == "children at work":
        return "not done yet: the agent claimed it, and its children are still running"
    if iteration.result == "done":
        return f"done: {share}" if iteration.checks else None if history.claims == ("turn",) else "done"
    if iteration.result == "failed":
        return f"not done: the turn failed: {iteration.failure}"
    return f"not done: {share if iteration.result == 'checks failed' else happened(iteration)}"


def _share(iteration: PastIteration) -> str:
    failed, number = sum(not check.passed for check in iteration.checks), len(iteration.checks)
    if number == 1:
        return "the check failed" if failed else "the check passed"
    if not failed:
        return "both checks passed" if number == 2 else f"all {number} checks passed"
    return f"{failed} of {number} checks failed"


def done_when(claims: Sequence[str], checks: int) -> str:
    """Return when the run will be done: `all checks pass and the agent says COMPLETE`."""
    if not claims or claims[0] == "turn":
        return "one turn is over" if claims else ""
    verified = "the check passes" if checks == 1 else "all checks pass"
    if "checks" in claims:
        return verified
    spoken = " or ".join(_describe_claim(claim) for claim in claims if claim != "green")
    spoken += " or has nothing to add" if "green" in claims else ""
    return f"{verified} and {spoken}" if checks else spoken


def _describe_claim(claim: str) -> str:
    kind, _, text = claim.partition(":")
    if kind == "file":
        return f"the file {short(text, 80)} exists"
    marker = f"<{kind}>{text}</{kind}>" if kind in ("promise", "response") else text
    return f"the agent says {short(marker, 80)}"


def exit_words(code: int | None) -> str:
    if code is None:
        return "no exit code"
    return f"exit {code}" if code >= 0 else f"signal {-code}"


def how_it_failed(check: CheckResult) -> str:
    return f"timed out after {duration(check.timeout)}" if check.timeout else exit_words(check.exit_code)


_BY_A_PERSON = {
    **dict.fromkeys(("SIGINT", "SIGTERM", STOP_REQUEST), "stopped by you"),
    "SIGHUP": "stopped by you at once, or its terminal is gone",
}


def why_ended(run: RunHistory | Now | RunFinished) -> str:
    """Return why a run ended, in plain words."""
    return _BY_A_PERSON.get(run.interrupted_by) or run.reason


def ending_reason(run: RunHistory | Now) -> str:
    """Return why a run ended, and how to resume one that was interrupted."""
    return short(why_ended(run), 300) + ("; resume it with `ralph resume`" if run.outcome == "interrupted" else "")


def outcome_sentence(history: RunHistory) -> str:
    """Return how the run ended, or where it is."""
    outcome, reason = history.outcome, ending_reason(history)
    if not outcome:
        at = f" in iteration {history.iterations[-1].number}" if history.iterations else ""
        return f"{history.state}{at}"
    if outcome == "done" and history.first_numbers:
        accept = f": ralph accept {nickname(history.run)}" if history.run else ""
        paid = f", {money(history.cost_usd)}" if history.cost_usd else ""
        return f"tuned: {reason.removesuffix(')')}{paid}){accept}"
    sentence = outcome
    if outcome == "done" and history.untested:
        sentence += ", but no check tests the copy,"
    if outcome == "done" and not history.verified:
        sentence += " (unverified)"
        reason += "" if history.checked else "; no check or tasks file was given, so nothing has verified it"
    elif outcome != "done":
        names = {short(check.name, 60): f" {short(check.void, 200)}" if check.void else "" for check in history.failing}
        # a stalled run names one
        failing = [name + why for name, why in names.items() if f'"{name}"' not in reason or why]
        reason += f"; still failing: {listed(failing, 3)}" if failing else ""
    if history.restored and outcome != "interrupted":
        reason += f"; restored or removed {listed([short(path, 60) for path in history.restored], 3)}"
        reason += f" (the agent's versions: {short(history.aside, 500)})"
    if history.finished and outcome not in ("exhausted", "stalled"):  # their reasons say it
        sentence += f" after {plural(history.finished, 'iteration')}"
    return f"{sentence}{': ' if reason else ''}{reason} ({', '.join(spent(history.seconds, history.cost_usd))})"


def whereabouts(history: RunHistory, *, briefly: bool = False) -> list[str]:
    """Return where the work of a run with its own worktree is and, unless `briefly`, how to accept it."""
    if not history.worktree and not history.branch:
        return []
    place = f" in {short(history.worktree, 500)}" if history.worktree else ""
    branch = short(history.branch, 200)
    if history.untouched:
        return [f"Nothing was changed{f' on branch {branch}' if branch else ''}{place}"]
    lines = [f"The work is{f' on branch {branch}' if branch else ''}{place}"]
    accept = f"ralph accept {nickname(history.run)}" if history.run else f"git merge {quote(branch)}"
    is_cut_off = history.outcome in ("interrupted", "failed", "fatal")  # the last turn may not be committed
    return lines if briefly or is_cut_off or not branch else [*lines, f"To merge it: {accept}"]
