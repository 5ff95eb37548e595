"""What did a run do, iteration by iteration? The lines of `ralph show`."""

from collections.abc import Iterator

from ralph.core.text import one_line, short
from ralph.show.account import Account, Chapter
from ralph.show.amounts import count, duration, moment, money, plural
from ralph.show.needs import needs
from ralph.show.style import Style

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
