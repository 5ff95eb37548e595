"""What does a run need of the person who started it? Each need as a fact, and what can be done about it as data: a
terminal shows that as a command, a page as a button."""

from collections.abc import Iterator
from math import ceil
from typing import Literal

from msgspec import Struct

from ralph.core.claims import Claim
from ralph.core.text import listed
from ralph.history.run_history import CheckResult, RunHistory
from ralph.history.states import state_of


class Action(Struct, frozen=True):
    """What a person can do. `question` is the one to answer, by its id; `options` of a run that shall go on, by name;
    `branch` is what git merges; to `allow` is to let a run go on whose agent may do everything."""

    verb: Literal["answer", "tell", "resume", "allow", "diff", "merge", "show", "report", "accept", "discard"]
    run: str
    question: str = ""
    options: tuple[tuple[str, str], ...] = ()
    branch: str = ""


class Need(Struct, frozen=True, kw_only=True):
    """`kind` is question, check, unverified, unclaimed, denied, branch, scm, restored, notice, or the state in which
    the run stays until somebody acts. `text` is what others said of it; `name` and `iteration` tell SCM tasks apart."""

    kind: str
    name: str = ""
    text: str = ""
    actions: tuple[Action, ...] = ()
    iteration: int = 0
    check: CheckResult | None = None


_LIMITED = {"exhausted", "budget", "timeout", "stalled"}


def needs(history: RunHistory) -> list[Need]:
    """What it asks, how it ended, what it was not allowed, where the work is, and what was odd."""
    run = history.run
    open_questions = [one for one in history.questions if not one.answer]
    found = [Need(kind="question", text=one.text, actions=(Action("answer", run, one.id),)) for one in open_questions]
    found += _ending(history)
    if history.denied_tools and history.outcome and history.outcome != "done":
        allow = (Action("allow", run),) if _is_held_back(history) else ()
        found.append(Need(kind="denied", name=listed(tuple(history.denied_tools)), actions=allow))
    if history.branch and history.outcome and not history.untouched and not history.backlog_task:  # a gate lands items
        found.append(Need(kind="branch", actions=(Action("merge", run, branch=history.branch),)))
    for past in history.iterations:
        failed = ((task, detail) for task, ok, detail in past.scm if not ok)
        found += [Need(kind="scm", name=task, text=detail, iteration=past.number) for task, detail in failed]
    restored = sorted({path for past in history.iterations for path in past.restored})
    if restored:
        found.append(Need(kind="restored", text=", ".join(restored)))
    return [*found, *(Need(kind="notice", text=notice) for notice in history.notices)]


def next_steps(history: RunHistory) -> list[Action]:
    """The two or three things that make sense once the run has ended, the likeliest first."""
    run = history.run
    look = [Action("diff", run)] if history.base_tree and not history.untouched and history.finished else []
    if history.outcome and state_of(history.outcome).needs_you:
        options = (("until", "checks"),) if history.lacks_claim_alone else _room(history)
        go_on = Action("allow", run) if _is_held_back(history) else Action("resume", run, options=options)
        resume = [go_on] if history.finished or history.iterations else []
        return [*resume, *look, Action("show", run)] if resume else []
    if history.branch and not history.untouched:
        return [*look, Action("accept", run), Action("discard", run)]
    return [*look, Action("report", run)]


def _ending(history: RunHistory) -> Iterator[Need]:
    if history.state in _LIMITED and history.lacks_claim_alone:
        suffice = Action("resume", history.run, options=(("until", "checks"),))
        worded = next((claim.split(":", 1) for claim in history.claims if ":" in claim), None)
        deed = Claim(*worded).deed if worded else "say that it is done"  # what the agent should have done
        yield Need(kind="unclaimed", text=deed, actions=(Action("diff", history.run), suffice))
    elif history.state != "asking" and state_of(history.state).needs_you:  # a question is a need of its own
        tell = (Action("tell", history.run),) if history.state in ("stalled", "blocked") else ()
        resume = Action("resume", history.run, options=_room(history))
        text = history.reason if history.state == "blocked" else ""
        if not _is_held_back(history):  # of which the permissions speak
            yield Need(kind=history.state, text=text, actions=(*tell, resume))
        for check in history.failing if history.state != "paused" else ():
            yield Need(kind="check", check=check)
    elif history.outcome == "done" and not history.verified:
        yield Need(kind="unverified", actions=(Action("diff", history.run),))


def _room(history: RunHistory) -> tuple[tuple[str, str], ...]:
    """As much again as was used up: limits of money and time are those of the whole run."""
    if history.state == "exhausted":
        return (("more", "10"),)
    if history.state == "timeout":
        return (("max_time", f"{ceil(2 * history.seconds / 3600) or 1}h"),)
    if history.state != "budget":
        return ()
    if history.cost_usd is None:
        return (("max_tokens", str(2 * history.usage.tokens)),)
    return (("max_cost", str(ceil(2 * history.cost_usd) or 1)),)


def _is_held_back(history: RunHistory) -> bool:
    """Whether the run failed because its agent was not allowed to do anything."""
    return history.state == "failed" and bool(history.iterations and history.iterations[-1].denials)
