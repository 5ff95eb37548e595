"""What does a run need of the person who started it? Questions, reviews, commands to type: each said once, plainly."""

from collections.abc import Iterator

from msgspec import Struct

from ralph.core.text import one_line, short
from ralph.history.account import Account


class Need(Struct, frozen=True):
    """Something to do, and the command that does it, if there is one."""

    text: str
    command: str = ""


def needs(account: Account) -> list[Need]:
    return [*_answers(account), *_ending(account), *_work(account), *_oddities(account)]


def _answers(account: Account) -> Iterator[Need]:
    for question in account.questions:
        if not question.answer:
            yield Need(f"The agent asks: {one_line(question.text, 500)}", f'ralph tell {account.run} "…"')


_GO_ON = {
    "exhausted": ("The iterations are used up. Give it more, if what it did looks right.", "ralph resume {} -m 10"),
    "budget": ("The budget is spent. Give it more, if what it did looks right.", "ralph resume {} --max-cost 10"),
    "timeout": ("The time is over. Give it more, if what it did looks right.", "ralph resume {} --max-time 2h"),
    "stalled": ("It repeated itself. Say what it misses, then let it go on.", 'ralph tell {} "…" && ralph resume {}'),
    "failed": ("The agent kept failing. See why, then let it go on.", "ralph resume {}"),
    "interrupted": ("It was interrupted. Let it go on when you like.", "ralph resume {}"),
    "killed": ("It was killed. Nothing that was recorded is lost: let it go on.", "ralph resume {}"),
    "fatal": ("It could not go on. Mend what stands in its way, then let it.", "ralph resume {}"),
}


def _ending(account: Account) -> Iterator[Need]:
    if account.state in _GO_ON:
        text, command = _GO_ON[account.state]
        yield Need(text, command.replace("{}", account.run))
        for check in account.failing:
            where = f": see {check.log}" if check.log else ""
            yield Need(f"A check still fails ({check.how}): {check.name}{where}")
    elif account.outcome == "done" and not account.verified:
        yield Need("Nothing has verified this work: no check was configured. Review it yourself.", "ralph diff")


def _work(account: Account) -> Iterator[Need]:
    if account.branch and account.outcome and not account.untouched:
        yield Need("The work is on a branch of its own. Review it, then take it over.", f"git merge {account.branch}")
    for chapter in account.chapters:
        for task, ok, detail in chapter.scm:
            if not ok:
                yield Need(f"{task} failed after iteration {chapter.number}: {detail}")


def _oddities(account: Account) -> Iterator[Need]:
    restored = sorted({path for chapter in account.chapters for path in chapter.restored})
    if restored:
        names = short(", ".join(restored), 300)
        yield Need(f"The agent changed protected files, which were put back: {names}")
    for notice in account.notices:
        yield Need(notice)
