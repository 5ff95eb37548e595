"""How does a report read in a pull request or a CI summary? As Markdown in which an agent's text stays text."""

from collections.abc import Container, Sequence

from msgspec.structs import replace

from ralph.core.model import FileChange
from ralph.core.text import clean, head, one_line
from ralph.history.needs import needs
from ralph.history.run_history import PastIteration, RunHistory
from ralph.show.words import commands, count, duration, happened, money, need_words, outcome_sentence, plural

MOST_FILES = 50
CONCERNS_A_REVIEW = ("question", "unclaimed", "denied", "blocked", "restored")
# A comment inside keeps a forge from taking `@name` for a person to call, and `#1` for an issue to link.
_SPECIAL = {ord(char): "\\" + char for char in "\\`*_[]|~>$"} | {
    ord("<"): "&lt;",
    ord("&"): "&amp;",
    ord("@"): "@<!-- -->",
    ord("#"): "#<!-- -->",
}


def markdown(histories: Sequence[RunHistory]) -> str:
    """The reports of these runs, one below the other."""
    return "\n---\n\n".join(_report(history) for history in histories)


def for_review(history: RunHistory, answer: str) -> str:
    """The report for whoever reviews the change at its host: what was asked and done comes before how it was verified,
    and what concerns only the machine on which it was made is left out."""
    done = f"### What was done, in the agent's words\n\n{quoted(answer)}" if answer else ""
    matrix = (_iterations(history), _proofs(history), _refusals(history), _files(history.files))
    history = replace(history, agent=history.agent.rpartition("/")[2])
    parts = [_heading(history), _goal(history), done, _needs(history, CONCERNS_A_REVIEW), *matrix, _facts(history)]
    return _joined(parts)


def escape(text: str, limit: int = 300) -> str:
    """Text on one line that no renderer takes for a mark, a link, a mention or HTML."""
    said = one_line(clean(text[: 4 * limit]), limit).translate(_SPECIAL)
    said = said.replace("://", "\\://").replace("www.", "www\\.")
    return "\\" + said if said.startswith(("-", "+", "=")) else said


def code(text: str, limit: int = 200) -> str:
    """Text on one line as code: a fence of backticks longer than any in it."""
    said = one_line(clean(text[: 4 * limit]), limit).replace("|", "¦")
    runs = "".join(char if char == "`" else " " for char in said).split()
    fence = "`" * (max(map(len, runs), default=0) + 1)
    pad = " " if runs else ""
    return f"{fence}{pad}{said}{pad}{fence}" if said else ""


def quoted(text: str, limit: int = 3000) -> str:
    """Text of several lines as a quotation in which it stays text."""
    said = head(clean(text[: 4 * limit]).strip(), limit, " …")
    return "\n".join(f"> {escape(line, 500)}".rstrip() for line in said.splitlines())


def _report(history: RunHistory) -> str:
    parts = [_heading(history), _goal(history), _facts(history), _needs(history), _iterations(history)]
    return _joined([*parts, _proofs(history), _refusals(history), _files(history.files)])


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _goal(history: RunHistory) -> str:
    return f"**Goal:** {escape(history.goal, 500)}"


def _heading(history: RunHistory) -> str:
    mark = "✅" if history.outcome == "done" and history.verified else "⚠️" if history.outcome == "done" else "❌"
    mark = mark if history.outcome else "⏳"
    return f"## {mark} {escape(outcome_sentence(history).removeprefix('ralph: '), 600)}"


def _facts(history: RunHistory) -> str:
    facts = [f"run {code(history.run)}", escape(history.agent), plural(len(history.iterations), "iteration")]
    facts.append(duration(history.seconds))
    if history.cost_usd is not None:
        facts.append(escape(money(history.cost_usd)))
    if history.usage.tokens:
        facts.append(f"{count(history.usage.tokens)} tokens")
    if history.branch:
        facts.append(f"branch {code(history.branch)}")
    return " · ".join(facts)


def _needs(history: RunHistory, kinds: Container[str] | None = None) -> str:
    wanted = [one for one in needs(history) if kinds is None or one.kind in kinds]
    if not wanted:
        return ""
    items = [f"- {escape(need_words(one), 600)} {code(commands(one))}".rstrip() for one in wanted]
    return "### What needs you\n\n" + "\n".join(items)


def _iterations(history: RunHistory) -> str:
    if not history.iterations:
        return ""
    names = list(dict.fromkeys(check.name for one in history.iterations for check in one.checks))
    titles = ["#", *(code(name, 60) for name in names), "tools", "tokens", "cost", "time", "files", "what happened"]
    rows = [_row(one, names) for one in history.iterations]
    return "### Iterations\n\n" + _table(titles, rows)


def _proofs(history: RunHistory) -> str:
    """Which checks have ever failed: one that never did may be unable to."""
    said = (
        [f"Seen red at least once: {', '.join(code(name, 60) for name in history.proven)}."] if history.proven else []
    )
    if history.unproven:
        said.append(f"Never seen red, so unproven: {', '.join(code(name, 60) for name in history.unproven)}.")
    return " ".join(said)


def _row(one: PastIteration, names: list[str]) -> list[str]:
    seen = {check.name: check.passed for check in one.checks}
    return [
        str(one.number),
        *("" if name not in seen else "✅" if seen[name] else "❌" for name in names),
        "" if one.tool_calls is None else str(one.tool_calls),
        count(one.usage.tokens) if one.usage.tokens else "",
        "" if one.usage.cost_usd is None else escape(money(one.usage.cost_usd)),
        duration(one.seconds),
        "" if one.files is None else str(len(one.files)),
        escape(happened(one), 200),
    ]


def _refusals(history: RunHistory) -> str:
    rows = [
        [str(one.number), code(refused.claim), escape(refused.gate), escape(refused.reason)]
        for one in history.iterations
        for refused in one.refused
    ]
    return "### Claims that were refused\n\n" + _table(["iteration", "claim", "by", "because"], rows) if rows else ""


def _files(files: Sequence[FileChange] | None) -> str:
    if not files:
        return ""
    rows = [[code(one.path), _lines(one)] for one in files[:MOST_FILES]]
    more = f"\n\nand {len(files) - MOST_FILES} more" if len(files) > MOST_FILES else ""
    return f"### {plural(len(files), 'file')} changed\n\n" + _table(["file", "lines"], rows) + more


def _lines(one: FileChange) -> str:
    return "binary" if one.added is None else f"+{one.added} −{one.deleted}"


def _table(titles: list[str], rows: list[list[str]]) -> str:
    """Without the columns in which nothing stands."""
    used = [at for at in range(len(titles)) if any(row[at] for row in rows)]
    lines = [[titles[at] for at in used], ["---"] * len(used), *([row[at] for at in used] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
