"""What needs a person in a run, and the actions that help.

A terminal shows an action as a command, the web UI as a button. ralph proposes only actions that it would accept: none
for a branch that is gone, a question that is closed, or a run that cannot be resumed.
"""

from collections.abc import Iterator
from math import ceil
from shlex import quote
from typing import Literal

from msgspec import Struct

from ralph.core.claims import Claim
from ralph.core.stuck_rules import WAYS_OUT
from ralph.core.text import listed, nickname, one_line, short
from ralph.history.run_history import CheckResult, RunHistory
from ralph.history.states import state_of
from ralph.show.words import RAISE_LIMIT, how_it_failed


class Action(Struct, frozen=True):
    """Something that a person can do about `run`.

    `options` are those of resume or rewind, `task` is the task to retry if `run` is a backlog. The verb `allow` means:
    resume with --yolo.
    """

    verb: Literal["answer", "tell", "resume", "allow", "diff", "show", "report", "accept", "discard", "retry", "rewind"]
    run: str
    options: tuple[tuple[str, str], ...] = ()
    task: str = ""


class Need(Struct, frozen=True):
    """One thing that needs a person, as a sentence.

    `kind` is question, check, unverified, unclaimed, exam, denied, branch, task, scm, restored, notice, or the state of
    a run that waits for a person.
    """

    kind: str
    text: str
    actions: tuple[Action, ...] = ()

    @property
    def commands(self) -> str:
        return " && ".join(map(command, self.actions))


_CUT_OFF = ("", "interrupted", "failed", "fatal")  # the last turn may not be committed, so it cannot be accepted
_LIMITED = {"exhausted", "budget", "timeout", "stalled"}


def needs(history: RunHistory) -> list[Need]:
    """Return everything that needs a person: questions, the outcome, denials, the branch, failed side effects."""
    if history.branch and history.outcome and not history.now.has_branch and not history.backlog_task:
        return []  # accepted or discarded
    run = history.run
    open_needs, still_open = [], history.now.open_questions
    for question in history.questions if history.outcome != "done" else ():
        if not question.answer and (still_open is None or question.id in still_open):
            text = f"The agent asks: {one_line(question.text, 500)}"
            open_needs.append(Need("question", text, (Action("answer", run),)))
    open_needs += _task_needs(history) if history.backlog_task and history.outcome else _ending_needs(history)
    denied = tuple(dict.fromkeys(tool for iteration in history.iterations for tool in iteration.denials))
    if denied and history.outcome and history.outcome != "done":
        allow = (Action("allow", run),) if _was_denied_everything(history) and not history.backlog_task else ()
        text = f"The agent was not allowed to use {listed(denied)}. To let it: {WAYS_OUT}."
        open_needs.append(Need("denied", text, allow))
    is_acceptable = history.outcome not in _CUT_OFF and not history.failing
    if history.branch and is_acceptable and not history.untouched and not history.backlog_task:
        text = "The work is on its own branch. Review it, then accept it."
        open_needs.append(Need("branch", text, (Action("accept", run),)))
    return [*open_needs, *_side_effects(history)]


def _side_effects(history: RunHistory) -> Iterator[Need]:
    """Yield failed SCM tasks, restored files and warnings."""
    for past in history.iterations:
        for task, ok, detail in past.scm:
            if not ok:
                yield Need("scm", f"{task} failed after iteration {past.number}: {detail}")
    if history.restored:
        names, aside = short(", ".join(history.restored), 300), short(history.aside, 500)
        changed = f"The agent changed protected files, which ralph restored or removed: {names}."
        yield Need("restored", f"{changed} Its versions are in {aside}")
    lists = [f": {listed(past.restored)}" for past in history.iterations if past.restored]
    for notice in history.notices:
        if not any(names in notice for names in lists):  # else it repeats the need above
            yield Need("notice", notice)


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
        how = "its run did not finish it. Retry it, with a note if you know what it misses."
        retry = Action("retry", history.work, task=history.backlog_task)
        yield Need("task", f"{history.backlog_task} is parked: {how}", (retry,))
        yield from map(_failing_check, history.failing)


def _failing_check(check: CheckResult) -> Need:
    where = f": see {check.log}" if check.log else ""
    late = f"; {RAISE_LIMIT}" if check.timeout else ""
    return Need("check", f"A check still fails ({how_it_failed(check)}): {check.name}{where}{late}")


def _ending_needs(history: RunHistory) -> Iterator[Need]:
    if history.state in _LIMITED and history.lacks_claim_alone:
        finish = Action("resume", history.run, options=(("until", "checks"),))
        worded = next((claim.split(":", 1) for claim in history.claims if ":" in claim), None)
        deed = Claim(*worded).deed if worded else "say that it is done"
        text = f"Every check passes, but the agent did not {deed}. If it looks right, let green checks suffice."
        yield Need("unclaimed", text, (Action("diff", history.run), finish))
    elif history.is_refused_by_exam:
        then = "See what it printed; then fix it, or tell the agent, and resume."
        yield Need("exam", f"The exam refused the agent's claims. {then}", (Action("show", history.run),))
    elif history.state != "asking" and state_of(history.state).needs_you:  # a question is its own need
        tell = (Action("tell", history.run),) if history.state in ("stalled", "blocked") else ()
        resume = Action("resume", history.run, options=_higher_limit(history))
        text = state_of(history.state).advice
        if history.state == "blocked":
            reason = one_line(history.reason, 500).rstrip(".")
            text = f"The agent is blocked: {reason}. {text}"
        if not _was_denied_everything(history):  # then the denial is the need
            yield Need(history.state, text, (*tell, resume))
        if history.state != "paused":
            yield from map(_failing_check, history.failing)
    elif history.outcome == "done" and not history.verified:
        look = (Action("diff", history.run),) if history.has_changes else ()
        text = "Nothing has verified this work: no check was configured. Review it yourself."
        yield Need("unverified", text, look)


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


def _option(key: str) -> str:
    return "-m" if key == "more" else f"--{key.replace('_', '-')}"


def command(action: Action) -> str:
    """Return the command for an action."""
    name, options = nickname(action.run), dict(action.options)
    if action.verb == "resume":
        return " ".join((f"ralph resume {name}", *(f"{_option(key)} {options[key]}" for key in options)))
    if action.verb in ("answer", "tell"):
        return f'ralph tell {name} "…"'
    others = {
        "retry": f"ralph work retry {quote(action.task)}",
        "rewind": f"ralph rewind {name} {options.get('to')}",
        "allow": f"ralph resume {name} --yolo",
    }
    return others.get(action.verb, f"ralph {action.verb} {name}")


PURPOSES = {
    "accept": "run the checks once more, merge it, clean up",
    "discard": "throw it away",
    "resume": "continue where it stopped",
    "rewind": "restore the files of its best iteration",
    "allow": "continue, and allow the agent everything",
    "diff": "what it changed",
    "show": "what happened, iteration by iteration",
    "report": "a report as a web page",
}
"""What an action is for."""
