"""What needs a person in a run, and the actions that help.

A terminal shows an action as a command, the web UI as a button. ralph proposes only actions that it would accept: none
for a branch that is gone, a question that is closed, or a run that cannot be resumed.
"""

from collections.abc import Iterator
from math import ceil
from typing import Literal

from msgspec import Struct

from ralph.core.claims import Claim
from ralph.core.text import listed
from ralph.history.run_history import CheckResult, RunHistory
from ralph.history.states import state_of


class Action(Struct, frozen=True):
    """Something that a person can do about `run`.

    `question` is the id of the question to answer, `options` are those of resume or rewind, `task` is the task to retry
    if `run` is a backlog. The verb `allow` means: resume with --yolo.
    """

    verb: Literal["answer", "tell", "resume", "allow", "diff", "show", "report", "accept", "discard", "retry", "rewind"]
    run: str
    question: str = ""
    options: tuple[tuple[str, str], ...] = ()
    task: str = ""


class Need(Struct, frozen=True, kw_only=True):
    """One thing that needs a person.

    `kind` is question, check, unverified, unclaimed, exam, denied, branch, task, scm, restored, notice, or the state of
    a run that waits for a person. `name` and `iteration` distinguish SCM tasks.
    """

    kind: str
    name: str = ""
    text: str = ""
    actions: tuple[Action, ...] = ()
    iteration: int = 0
    check: CheckResult | None = None


_CUT_OFF = ("", "interrupted", "failed", "fatal")  # the last turn may not be committed, so it cannot be accepted
_LIMITED = {"exhausted", "budget", "timeout", "stalled"}


def needs(history: RunHistory) -> list[Need]:
    """Return everything that needs a person: questions, the outcome, denials, the branch, failed side effects."""
    if history.branch and history.outcome and not history.now.has_branch and not history.backlog_task:
        return []  # accepted or discarded
    run = history.run
    found, still_open = [], history.now.open_questions
    for one in history.questions if history.outcome != "done" else ():
        if not one.answer and (still_open is None or one.id in still_open):
            found.append(Need(kind="question", text=one.text, actions=(Action("answer", run, one.id),)))
    found += _task_needs(history) if history.backlog_task and history.outcome else _ending_needs(history)
    denied = tuple(dict.fromkeys(tool for one in history.iterations for tool in one.denials))
    if denied and history.outcome and history.outcome != "done":
        allow = (Action("allow", run),) if _was_denied_everything(history) and not history.backlog_task else ()
        found.append(Need(kind="denied", name=listed(denied), actions=allow))
    is_acceptable = history.outcome not in _CUT_OFF and not history.failing
    if history.branch and is_acceptable and not history.untouched and not history.backlog_task:
        found.append(Need(kind="branch", actions=(Action("accept", run),)))
    return [*found, *_side_effects(history)]


def _side_effects(history: RunHistory) -> Iterator[Need]:
    """Yield failed SCM tasks, restored files and warnings."""
    for past in history.iterations:
        for task, ok, detail in past.scm:
            if not ok:
                yield Need(kind="scm", name=task, text=detail, iteration=past.number)
    if history.restored:
        yield Need(kind="restored", text=", ".join(history.restored), name=history.aside)
    lists = [f": {listed(past.restored)}" for past in history.iterations if past.restored]
    for notice in history.notices:
        if not any(names in notice for names in lists):  # else it repeats the need above
            yield Need(kind="notice", text=notice)


def next_steps(history: RunHistory) -> list[Action]:
    """Return the two or three most useful actions after the end of a run, the likeliest first."""
    run = history.run
    look = [Action("diff", run)] if history.has_changes else []
    if history.outcome and state_of(history.outcome).needs_you:
        options = (("until", "checks"),) if history.lacks_claim_alone else _higher_limit(history)
        if history.outcome == "stalled" and history.best and not history.lacks_claim_alone:
            options = (("then", "AGENT"),)
            is_last = history.best == len(history.iterations)
            rewind = Action("rewind", run, options=(("to", str(history.best)),))
            look = [] if is_last or not history.has_changes else [rewind]
        is_denied = _was_denied_everything(history)
        resume = Action("allow", run) if is_denied else Action("resume", run, options=options)
        return [resume, *look, Action("show", run)] if history.finished or history.iterations else []
    if history.branch and not history.untouched:
        return [*look, Action("accept", run), Action("discard", run)]
    return [*look, Action("report", run)]


def _task_needs(history: RunHistory) -> Iterator[Need]:
    """Yield the needs of a run for a task. Its backlog resumes and merges it: only a parked task needs a person."""
    if history.now.is_parked:
        retry = Action("retry", history.work, task=history.backlog_task)
        yield Need(kind="task", name=history.backlog_task, actions=(retry,))
        yield from (Need(kind="check", check=check) for check in history.failing)


def _ending_needs(history: RunHistory) -> Iterator[Need]:
    if history.state in _LIMITED and history.lacks_claim_alone:
        finish = Action("resume", history.run, options=(("until", "checks"),))
        worded = next((claim.split(":", 1) for claim in history.claims if ":" in claim), None)
        deed = Claim(*worded).deed if worded else "say that it is done"
        yield Need(kind="unclaimed", text=deed, actions=(Action("diff", history.run), finish))
    elif history.is_refused_by_exam:
        yield Need(kind="exam", actions=(Action("show", history.run),))
    elif history.state != "asking" and state_of(history.state).needs_you:  # a question is its own need
        tell = (Action("tell", history.run),) if history.state in ("stalled", "blocked") else ()
        resume = Action("resume", history.run, options=_higher_limit(history))
        text = history.reason if history.state == "blocked" else ""
        if not _was_denied_everything(history):  # then the denial is the need
            yield Need(kind=history.state, text=text, actions=(*tell, resume))
        if history.state != "paused":
            yield from (Need(kind="check", check=check) for check in history.failing)
    elif history.outcome == "done" and not history.verified:
        look = (Action("diff", history.run),) if history.has_changes else ()
        yield Need(kind="unverified", actions=look)


def _higher_limit(history: RunHistory) -> tuple[tuple[str, str], ...]:
    """Return the option that raises the reached limit. Limits on cost, tokens and time count from the start of the run,
    so they are doubled."""
    if history.state == "exhausted":
        return (("more", "10"),)
    if history.state == "timeout":
        return (("max_time", f"{ceil(2 * history.seconds / 3600) or 1}h"),)
    if history.state != "budget":
        return ()
    if history.cost_usd is None:
        return (("max_tokens", str(2 * history.usage.tokens)),)
    return (("max_cost", str(ceil(2 * history.cost_usd) or 1)),)


def _was_denied_everything(history: RunHistory) -> bool:
    """Return whether the run failed because its agent was not allowed to do anything."""
    return history.state == "failed" and bool(history.iterations and history.iterations[-1].denials)
