"""The report of a backlog as a page: what needs a person, and each task with its evidence."""

from collections.abc import Mapping
from shlex import quote

from ralph.core.backlog import STATE_ORDER, Job
from ralph.core.text import plural
from ralph.history.backlog_history import BacklogHistory
from ralph.history.evidence import Evidence
from ralph.history.states import BADGES, TASK_TONES
from ralph.show.backlog_lines import backlog_sentence, count_states
from ralph.show.plots import Html, element, joined, prose
from ralph.show.report import page
from ralph.show.report_tables import fold, patch_details
from ralph.show.words import cost, duration, money, nickname

TaskEvidence = Mapping[str, Evidence]
"""Failed checks and changes of each task, by key."""
_NONE: TaskEvidence = {}


def html(history: BacklogHistory, evidence: TaskEvidence = _NONE) -> str:
    """Return the report as a page that needs no other file."""
    return page(f"ralph: {history.run}", report_body(history, evidence))


def report_body(history: BacklogHistory, evidence: TaskEvidence = _NONE) -> Html:
    started, states = history.started, history.states
    jobs = sorted(history.board.jobs.items(), key=lambda pair: STATE_ORDER.index(states[pair[0]]))
    tasks = [_task(job, states[key], evidence.get(key)) for key, job in jobs]
    retry = [
        element("li", element("b", job.task.key), ": ", prose(why), " ", element("code", retry_command(job)))
        for job, why in history.needing()
    ]
    merge = merge_command(history)
    if merge:
        retry.append(element("li", "Merge what is finished: ", element("code", merge)))
    about = (
        [f"{started.backlog} → {started.target}", *(f"check: {check}" for check in started.checks)] if started else []
    )
    nothing = element("div.card.needs.calmly", element("h2", "Nothing needs you."))
    needs = element("div.card.needs", element("h2", "What needs you"), element("ul", retry))
    return joined(
        element("h1", summary(history)),
        element("p.facts", [element("span", fact) for fact in [*about, *_figures(history)]]),
        needs if retry else nothing,
        element("section", element("h2", "Tasks"), tasks),
    )


def summary(history: BacklogHistory) -> str:
    """Return the state of the backlog in one sentence."""
    if history.finished and history.started:
        return backlog_sentence(history.finished, history.target)
    return f"{history.state}: {count_states([*history.states.values()])}"


def merge_command(history: BacklogHistory) -> str:
    """Return the command that merges what is finished; "" if nothing is, or a remote branch is the target."""
    started, finished = history.started, history.finished
    if not started or started.push or not finished or not finished.merged or not history.has_target:
        return ""
    return f"ralph accept {nickname(history.run)}"


def retry_command(job: Job) -> str:
    return f"ralph work retry {quote(job.task.key)}"


def _figures(history: BacklogHistory) -> list[str]:
    runs = sum(job.attempts for job in history.board.jobs.values())
    spent = [money(history.board.spent)] if history.board.costs else []
    took = duration(max(history.last - history.began, 0.0))
    return [plural(runs, "run"), plural(history.merges, "merge"), f"{history.returns} sent back", *spent, took]


def _task(job: Job, state: str, evidence: Evidence | None) -> Html:
    facts = [
        plural(job.attempts, "run") if job.attempts else "",
        cost(job.cost_usd),
        plural(len(job.files), "file") if job.files else "",
        f"merged as {job.commit[:12]}" if job.commit else "",
    ]
    badge = element("span", state, class_=f"badge {BADGES[TASK_TONES[state]]}")
    failed = [
        fold(f"✗ {name}", element("pre", text), is_open=state == "parked")
        for name, text in (evidence.tails.items() if evidence and state != "merged" else ())
    ]
    changes = patch_details(evidence, f"ralph diff {nickname(job.run)}") if evidence and evidence.patch else None
    return element(
        "div.card.task",
        element("p.top", badge, element("b.mono", job.task.key), element("span.soft", " · ".join(filter(None, facts)))),
        element("p", prose(job.task.about)),
        element("p.why", prose(job.reason)) if job.reason else None,
        element("div.evidence", failed, changes) if failed or changes else None,
    )
