"""How does a report read in a pull request or a CI summary? As Markdown in which an agent's text stays text."""

from collections.abc import Sequence

from ralph.core.text import clean, one_line
from ralph.history.account import Account, Changed, Chapter
from ralph.history.needs import needs
from ralph.show.words import count, duration, money, plural

MOST_FILES = 50
# A comment inside keeps a forge from taking `@name` for a person to call, and `#1` for an issue to link.
_SPECIAL = {ord(char): "\\" + char for char in "\\`*_[]|~>$"} | {
    ord("<"): "&lt;",
    ord("&"): "&amp;",
    ord("@"): "@<!-- -->",
    ord("#"): "#<!-- -->",
}


def markdown(accounts: Sequence[Account]) -> str:
    """The reports of these runs, one below the other."""
    return "\n---\n\n".join(_report(account) for account in accounts)


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


def _report(account: Account) -> str:
    mark = "✅" if account.outcome == "done" and account.verified else "⚠️" if account.outcome == "done" else "❌"
    mark = mark if account.outcome else "⏳"
    parts = [
        f"## {mark} {escape(account.sentence.removeprefix('ralph: '), 600)}",
        f"**Goal:** {escape(account.goal, 500)}",
        _facts(account),
        _needs(account),
        _iterations(account),
        _refusals(account),
        _files(account.files),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(account: Account) -> str:
    facts = [f"run {code(account.run)}", escape(account.agent), plural(len(account.chapters), "iteration")]
    facts.append(duration(account.seconds))
    if account.cost_usd is not None:
        facts.append(escape(money(account.cost_usd)))
    if account.usage.tokens:
        facts.append(f"{count(account.usage.tokens)} tokens")
    if account.branch:
        facts.append(f"branch {code(account.branch)}")
    return " · ".join(facts)


def _needs(account: Account) -> str:
    wanted = needs(account)
    if not wanted:
        return ""
    items = [f"- {escape(need.text, 600)}" + (f" {code(need.command)}" if need.command else "") for need in wanted]
    return "### What needs you\n\n" + "\n".join(items)


def _iterations(account: Account) -> str:
    if not account.chapters:
        return ""
    names = list(dict.fromkeys(check.name for chapter in account.chapters for check in chapter.checks))
    titles = ["#", *(code(name, 60) for name in names), "tools", "tokens", "cost", "time", "files", "what happened"]
    rows = [_row(chapter, names) for chapter in account.chapters]
    return "### Iterations\n\n" + _table(titles, rows)


def _row(chapter: Chapter, names: list[str]) -> list[str]:
    seen = {check.name: check.passed for check in chapter.checks}
    return [
        str(chapter.number),
        *("" if name not in seen else "✅" if seen[name] else "❌" for name in names),
        "" if chapter.tool_calls is None else str(chapter.tool_calls),
        count(chapter.usage.tokens) if chapter.usage.tokens else "",
        "" if chapter.usage.cost_usd is None else escape(money(chapter.usage.cost_usd)),
        duration(chapter.seconds),
        "" if chapter.files is None else str(len(chapter.files)),
        escape(chapter.happened, 200),
    ]


def _refusals(account: Account) -> str:
    rows = [
        [str(chapter.number), code(refused.claim), escape(refused.gate), escape(refused.reason)]
        for chapter in account.chapters
        for refused in chapter.refused
    ]
    return "### Claims that were refused\n\n" + _table(["iteration", "claim", "by", "because"], rows) if rows else ""


def _files(files: Sequence[Changed] | None) -> str:
    if not files:
        return ""
    rows = [[code(one.path), _lines(one)] for one in files[:MOST_FILES]]
    more = f"\n\nand {len(files) - MOST_FILES} more" if len(files) > MOST_FILES else ""
    return f"### {plural(len(files), 'file')} changed\n\n" + _table(["file", "lines"], rows) + more


def _lines(one: Changed) -> str:
    return "binary" if one.added is None else f"+{one.added} −{one.deleted}"


def _table(titles: list[str], rows: list[list[str]]) -> str:
    """Without the columns in which nothing stands."""
    used = [at for at in range(len(titles)) if any(row[at] for row in rows)]
    lines = [[titles[at] for at in used], ["---"] * len(used), *([row[at] for at in used] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
