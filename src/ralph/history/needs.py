"""What does a run need of the person who started it, and what can be done about it? Each need is said once, plainly;
an action is a command in a terminal, and a button on a page."""

from collections.abc import Iterator
from math import ceil

from msgspec import Struct

from ralph.core.text import one_line, short
from ralph.history.account import Account


class Action(Struct, frozen=True):
    """What can be done about a need: one of ralph's verbs with its options by name, or `merge`, which git does with a
    `branch`."""

    verb: str
    run: str
    options: tuple[tuple[str, str], ...] = ()
    branch: str = ""

    @property
    def command(self) -> str:
        """The words to type."""
        if self.verb == "merge":
            return f"git merge {self.branch}"
        if self.verb == "diff":
            return "ralph diff"
        tell = f'ralph tell {self.run} "…"'
        if self.verb == "tell":
            return tell
        words = " ".join((f"ralph resume {self.run}", *(f"{_SPELT[name]} {value}" for name, value in self.options)))
        return f"{tell} && {words}" if self.verb == "tell and resume" else words


_SPELT = {"more": "-m", "max_cost": "--max-cost", "max_tokens": "--max-tokens", "max_time": "--max-time"}


class Need(Struct, frozen=True):
    """Something to do, and the action that does it, if there is one."""

    text: str
    action: Action | None = None

    @property
    def command(self) -> str:
        return self.action.command if self.action else ""


def needs(account: Account) -> list[Need]:
    return [*_answers(account), *_ending(account), *_work(account), *_oddities(account)]


def _answers(account: Account) -> Iterator[Need]:
    for question in account.questions:
        if not question.answer:
            yield Need(f"The agent asks: {one_line(question.text, 500)}", Action("tell", account.run))


_GO_ON = {
    "exhausted": "The iterations are used up. Give it more, if what it did looks right.",
    "budget": "The budget is spent. Give it more, if what it did looks right.",
    "timeout": "The time is over. Give it more, if what it did looks right.",
    "stalled": "It repeated itself. Say what it misses, then let it go on.",
    "failed": "The agent kept failing. See why, then let it go on.",
    "interrupted": "It was interrupted. Let it go on when you like.",
    "killed": "It was killed. Nothing that was recorded is lost: let it go on.",
    "fatal": "It could not go on. Mend what stands in its way, then let it.",
}


def _ending(account: Account) -> Iterator[Need]:
    if account.state in _GO_ON:
        verb = "tell and resume" if account.state == "stalled" else "resume"
        yield Need(_GO_ON[account.state], Action(verb, account.run, _room(account)))
        for check in account.failing:
            where = f": see {check.log}" if check.log else ""
            yield Need(f"A check still fails ({check.how}): {check.name}{where}")
    elif account.outcome == "done" and not account.verified:
        why = "Nothing has verified this work: no check was configured. Review it yourself."
        yield Need(why, Action("diff", account.run))


def _room(account: Account) -> tuple[tuple[str, str], ...]:
    """As much again as was used up: limits of money and time are those of the whole run."""
    if account.state == "exhausted":
        return (("more", "10"),)
    if account.state == "timeout":
        return (("max_time", f"{ceil(2 * account.seconds / 3600) or 1}h"),)
    if account.state != "budget":
        return ()
    if account.cost_usd is None:
        return (("max_tokens", str(2 * account.usage.tokens)),)
    return (("max_cost", str(ceil(2 * account.cost_usd) or 1)),)


def _work(account: Account) -> Iterator[Need]:
    if account.branch and account.outcome and not account.untouched:
        review = "The work is on a branch of its own. Review it, then take it over."
        yield Need(review, Action("merge", account.run, branch=account.branch))
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
