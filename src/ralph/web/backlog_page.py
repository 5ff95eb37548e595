"""The page of a backlog: what needs a person, and the state of each task."""

from msgspec.structs import replace
from starlette.responses import HTMLResponse

from ralph.core.backlog import STATE_ORDER, Job
from ralph.core.text import plural, short
from ralph.history.backlog_history import look_at_target
from ralph.show.backlog_lines import totals
from ralph.show.backlog_report import TaskEvidence, merge_command, report_body, retry_command, summary
from ralph.show.plots import Html, element, prose
from ralph.show.words import money
from ralph.web.board_page import ending_buttons, waiting_reason
from ralph.web.pieces import (
    Frame,
    facts_line,
    items,
    mark,
    page_title,
    place_words,
    post_button,
    task_badge,
)
from ralph.web.run_page import (
    command_result,
    cost_meter,
    meter,
    or_empty,
    state_piece,
    steer,
    time_meter,
    title,
)
from ralph.web.watching import BacklogSeen

MAX_TASKS = 500


def backlog_page(work: BacklogSeen, frame: Frame) -> HTMLResponse:
    parts = pieces(work, frame)
    top = element("div.head", element("h1", short(work.status.present.goal, 600)), _facts(work), parts["now"])
    rest = (parts[name] for name in ("meters", "attention", "tasks"))
    main = element("main.one#main", top, *rest)
    return frame.page(
        parts["title"],
        frame.bar(parts["state"]),
        main,
        parts["steer"],
        live=f"?run={work.status.run.id}",
        class_="run-page work-page",
    )


def pieces(work: BacklogSeen, frame: Frame) -> dict[str, Html]:
    is_alive = work.status.run.is_alive
    if not is_alive:
        work = replace(work, history=look_at_target(work.history))
    history = work.history
    now = element("p.doing.soft#now", prose(summary(history)))
    if is_alive:
        now = element("p.doing#now", mark("run"), totals(history.board))
    parts = {
        "title": page_title(title(work.status)),
        "state": state_piece(work.status),
        "now": now,
        "meters": _meters(work),
        "attention": _attention(work, frame),
        "tasks": _tasks(work, frame),
        "steer": steer(work.status, frame),
    }
    return or_empty(parts)


def backlog_report_page(work: BacklogSeen, evidence: TaskEvidence, frame: Frame) -> HTMLResponse:
    main = element("main#main", report_body(look_at_target(work.history), evidence))
    crumbs = frame.bar(element("a", "Back to the backlog", href=frame.run(work.status.run.id)))
    return frame.page(f"{title(work.status)} report", crumbs, main, is_report=True)


def _facts(work: BacklogSeen) -> Html:
    began, run_facts = work.history.started, work.status.run.facts
    facts = [place_words(run_facts.workspace)]
    if began:
        facts.append(f"merges into {began.target}")
        if not _is_shared(work):
            facts.append(plural(began.slots, "task") + " at a time")
        elif workers := {job.worker for job in work.history.board.of("working")}:
            facts.append(plural(len(workers), "worker"))
        facts.append(f"checks before a merge: {', '.join(began.checks)}")
    return facts_line(*facts)


def _meters(work: BacklogSeen) -> Html:
    history, board = work.history, work.history.board
    states = [*history.states.values()]
    whole = len(states) - states.count("withdrawn")
    merged = states.count("merged")
    room = None if _is_shared(work) else board.slots
    meters = [
        meter("Merged", merged, whole or None, tone="good" if merged == whole else ""),
        meter("Running", states.count("working"), room),
        cost_meter(board.spent if board.costs else None, board.max_cost),
        time_meter(work.status, history.started.max_time if history.started else None),
    ]
    return element("dl.meters#meters", meters)


def _attention(work: BacklogSeen, frame: Frame) -> Html:
    """Return what needs a person, with the buttons that help."""
    history, rows = work.history, []
    board = history.board
    if board.stuck:
        rows.append(element("li", element("span", "Merging is blocked: ", prose(short(board.stuck, 400)))))
    for job, why in history.needing():
        text = element("span", element("b", job.task.key), " is parked: ", prose(why))
        look = element("a.btn", "Open its run", href=frame.run(job.run)) if _is_here(job, work) else None
        retry = element("code", retry_command(job))
        if frame.may_start:
            action = frame.run(work.status.run.id, "retry")
            retry = post_button(action, "Retry", "primary", hidden={"task": job.task.key})
        rows.append(element("li", text, element("span.acts", look, retry)))
    if not work.status.run.is_alive:
        merge = merge_command(history)
        how = None if frame.may_start else element("code", merge)
        waits = element("span", "What is finished waits to be merged. ", how) if merge else None
        buttons = ending_buttons(work.status, frame, can_accept=bool(merge), can_discard=bool(merge))
        if waits or buttons:
            rows.append(element("li", waits, element("span.acts", buttons) if buttons else None))
    card = element("div.card.attention", element("h2", "What needs you"), element("ul", rows)) if rows else None
    return element("div#attention", command_result(work.command), card)


def _tasks(work: BacklogSeen, frame: Frame) -> Html:
    """Return all tasks: those that need a person first, finished ones last."""
    states, jobs = work.history.states, work.history.board.jobs
    keys = sorted(jobs, key=lambda key: STATE_ORDER.index(states[key]))
    rows = [_task(jobs[key], states[key], work, frame) for key in keys[:MAX_TASKS]]
    report = element("a", "Report", href=frame.run(work.status.run.id, "report"))
    heading = element("h2", "Tasks", element("span.links", report))
    return element("section.card.tasks#tasks", heading, items(rows, len(keys) - MAX_TASKS))


def _task(job: Job, state: str, work: BacklogSeen, frame: Frame) -> Html:
    is_here, why = _is_here(job, work), waiting_reason(job, state)
    key = element("a", job.task.key, href=frame.run(job.run)) if is_here else element("span", job.task.key)
    facts = facts_line(
        f"on {job.worker}" if job.worker and state == "working" else "",
        _progress(job, work),
        f"{job.attempts} runs" if job.attempts > 1 else "",
        money(job.cost_usd) if job.cost_usd else "",
        plural(len(job.files), "file") if job.files else "",
        element("a", "Changes", href=frame.run(job.run, "diff")) if job.files and is_here else None,
    )
    return element(
        "li",
        element("p.first", task_badge(state), element("b.mono", key)),
        element("p", prose(short(job.task.about, 300))),
        element("p.soft", prose(why)) if why else None,
        facts,
        id=f"task-{job.task.key}",
        class_=state,
    )


def _is_shared(work: BacklogSeen) -> bool:
    """Whether several machines work on it; their number of slots is unknown."""
    return any(job.worker for job in work.history.board.jobs.values())


def _is_here(job: Job, work: BacklogSeen) -> bool:
    """Whether the task has a run on this machine."""
    return bool(job.run) and (not _is_shared(work) or work.loops.get(job.task.key) is not None)


def _progress(job: Job, work: BacklogSeen) -> str:
    facts = work.loops.get(job.task.key)
    if facts is None:
        return ""
    checks = f", {facts.checks_passed}/{facts.checks} checks" if facts.checks else ""
    return f"iteration {facts.finished + 1}{checks}" + (f": {short(facts.doing, 80)}" if facts.doing else "")
